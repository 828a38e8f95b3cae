"""New files in the place of what a folder holds: in which order, and what a failure leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.jobs.scoring import overwriting
from sparkdl_runner.jobs.spark.storage import delete_if_empty


class Hadoop:
    """A filesystem as Java has it, of this host's files; it notes what is deleted and moved."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fixed = ""
        """The name of a file that cannot be deleted or moved."""

    def open(self, _: Any, path: str) -> tuple[Any, Any]:
        return self, self.path(Path(path))

    def path(self, path: Path) -> Any:
        return SimpleNamespace(path=path, getName=lambda: path.name)

    def exists(self, one: Any) -> bool:
        return bool(one.path.exists())

    def listStatus(self, one: Any) -> list[Any]:  # noqa: N802
        # The marker is neither first nor last.
        found = sorted(one.path.iterdir(), key=lambda path: (path.name != "part-0", path.name))
        paths = [self.path(path) for path in found]
        return [SimpleNamespace(getPath=lambda path=path: path) for path in paths]

    def delete(self, one: Any, recursive: bool) -> bool:
        if one.path.name == self.fixed:
            return False
        self.done.append(f"delete {one.path.name}")
        if not one.path.is_dir():
            one.path.unlink()
        elif recursive:
            shutil.rmtree(one.path)
        else:
            one.path.rmdir()
        return True

    def rename(self, one: Any, target: Any) -> bool:
        if one.path.name == self.fixed:
            return False
        self.done.append(f"move {one.path.name}")
        one.path.rename(target.path)
        return True


@pytest.fixture
def hadoop(monkeypatch: pytest.MonkeyPatch) -> Hadoop:
    filesystem = Hadoop()
    monkeypatch.setattr(overwriting, "open_path", filesystem.open)
    return filesystem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds an earlier result."""
    for name in ("_SUCCESS", "part-0", "part-1"):
        (tmp_path / name).write_text("earlier")
    return tmp_path


def write(beside: str) -> None:
    for name in ("_SUCCESS", "part-0", "part-9"):
        Path(beside).mkdir(exist_ok=True)
        (Path(beside) / name).write_text("new")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_the_marker_goes_first_and_comes_last(hadoop: Hadoop, folder: Path) -> None:
    overwriting.overwrite(None, f"{folder}/", write)
    assert contents(folder) == dict.fromkeys(("_SUCCESS", "part-0", "part-9"), "new")
    assert [path for path in folder.iterdir() if path.is_dir()] == []
    *moves, last = hadoop.done
    assert moves == [
        *("delete _SUCCESS", "delete part-0", "delete part-1"),
        *("move part-0", "move part-9", "move _SUCCESS"),
    ]
    assert last.startswith("delete _new-")


def test_a_writer_that_fails_leaves_what_was_there_and_nothing_beside(
    hadoop: Hadoop, folder: Path
) -> None:
    def fail(beside: str) -> None:
        write(beside)
        raise OSError("no space")

    before = contents(folder)
    with pytest.raises(OSError, match="no space"):
        overwriting.overwrite(None, str(folder), fail)
    assert contents(folder) == before
    assert all(path.is_file() for path in folder.iterdir())


@pytest.mark.parametrize(
    ("fixed", "words"), [("part-1", "part-1 cannot be deleted"), ("part-9", "cannot be moved")]
)
def test_files_that_could_not_be_put_in_place_are_kept_and_named(
    hadoop: Hadoop, folder: Path, fixed: str, words: str
) -> None:
    hadoop.fixed = fixed
    with pytest.raises(RunnerError, match=rf"were written to \S+/_new-\w+, and .*{words}"):
        overwriting.overwrite(None, str(folder), write)
    (beside,) = (path for path in folder.iterdir() if path.is_dir())
    assert contents(beside)["part-9"] == "new"
    assert "_SUCCESS" not in contents(folder)


def test_only_an_empty_folder_is_deleted(hadoop: Hadoop, folder: Path) -> None:
    (folder / "empty").mkdir()
    for path in (folder, folder / "gone", folder / "empty"):
        delete_if_empty(*hadoop.open(None, str(path)))
    assert folder.exists()
    assert not (folder / "empty").exists()
