from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.connect import package


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small package in the place of this one."""
    folder = tmp_path / "sparkdl_runner"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "inner" / "__pycache__" / "left.pyc").touch()
    (folder / "__init__.py").write_text("from sparkdl_runner.inner import word\n")
    (folder / "inner" / "__init__.py").write_text("word = 'from the zip'\n")
    (folder / "inner" / "data.txt").write_text("data")
    monkeypatch.setattr(package, "files", lambda name: folder)
    yield folder
    package._zipped.cache_clear()


class Session:
    """Takes files as pyspark's does."""

    def __init__(self) -> None:
        self.taken: dict[str, bytes] = {}
        self.addArtifacts = self.take

    def take(self, path: str, *, pyfile: bool) -> None:
        assert pyfile
        self.taken[Path(path).name] = Path(path).read_bytes()


def sent() -> dict[str, bytes]:
    session = Session()
    package._zipped.cache_clear()
    package.send(session)
    return session.taken


def test_the_same_content_has_the_same_name_and_bytes_and_other_content_another_name(tree):
    first = sent()
    os.utime(tree / "inner" / "data.txt", (1, 1))
    assert sent() == first
    (tree / "inner" / "data.txt").write_text("changed")
    assert sent().keys().isdisjoint(first)


def word_in_a_process(archive: Path) -> str:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sparkdl_runner as it; print(it.word)"
    )
    child = [sys.executable, "-I", "-S", "-c", code, str(archive)]
    return subprocess.run(child, capture_output=True, text=True, check=True).stdout


def test_it_is_imported_as_it_was_compiled(tree, tmp_path):
    ((name, content),) = sent().items()
    archive = tmp_path / name
    archive.write_bytes(content)
    assert word_in_a_process(archive) == "from the zip\n"
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(tmp_path / "same.zip", "w") as changed:
        assert not [one for one in packed.namelist() if "__pycache__" in one]
        for one in packed.infolist():
            is_source = one.filename.endswith(".py")
            changed.writestr(one, b"not Python" if is_source else packed.read(one))
    assert word_in_a_process(tmp_path / "same.zip") == "from the zip\n"


def test_a_server_that_takes_no_files_is_told_in_a_sentence(tree, monkeypatch):
    def refuse(self, path, *, pyfile):
        raise RuntimeError("no room")

    monkeypatch.setattr(Session, "take", refuse)
    with pytest.raises(LaunchError, match=r"does not take it from here \(no room\): install it on"):
        sent()
