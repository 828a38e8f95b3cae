"""What is looked at before a training, on this host and without Spark."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.spark import storage


def test_a_place_is_found_writable_and_left_as_it_was(tmp_path: Path) -> None:
    storage.check_ranks_may_write((tmp_path / "new" / "checkpoints").as_uri())
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "empty"
    kept.mkdir()
    storage.check_ranks_may_write(kept.as_uri())
    assert list(tmp_path.iterdir()) == [kept]
    assert not list(kept.iterdir())


def test_a_place_that_is_not_writable_is_left_as_it_was_too(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to .*/a-file/checkpoints: "):
        storage.check_ranks_may_write((tmp_path / "a-file" / "checkpoints").as_uri())
    assert [one.name for one in tmp_path.iterdir()] == ["a-file"]


def test_one_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("")
    assert storage.is_file(str(tmp_path / "a.parquet"), None)
    assert not storage.is_file(str(tmp_path), None)
    assert not storage.is_file(str(tmp_path / "gone"), None)


def test_a_place_of_no_known_kind_is_refused_without_its_password(tmp_path: Path) -> None:
    storage.check_reachable(tmp_path.as_uri())
    with pytest.raises(ConfigError, match="cannot reach gopher://…@host/a: ") as told:
        storage.check_reachable("gopher://me:secret@host/a")
    assert "secret" not in str(told.value)


class Folder(PurePosixPath):
    """A path as Hadoop has it."""

    def getParent(self) -> Folder | None:  # noqa: N802
        return None if self == self.parent else self.parent


def test_the_folders_that_a_filesystem_lacks_are_listed_from_below() -> None:
    there = {Folder("/"), Folder("/a")}
    filesystem = SimpleNamespace(exists=there.__contains__)
    assert storage._missing(filesystem, Folder("/a/b/c")) == [Folder("/a/b/c"), Folder("/a/b")]
    assert storage._missing(filesystem, Folder("/a")) == []
    there.clear()
    assert storage._missing(filesystem, Folder("/a")) == [Folder("/a"), Folder("/")]
