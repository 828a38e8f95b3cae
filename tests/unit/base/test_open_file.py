"""An open file is reached where the system has no path for it, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkdl_runner.base import open_file


@pytest.fixture(params=[True, False], ids=["with paths", "without"])
def has_paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(open_file, "_HAS_PATHS", request.param)
    return bool(request.param)


@pytest.mark.usefixtures("has_paths")
def test_the_file_that_was_opened_is_read_whatever_has_its_name_now(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    descriptor = os.open(path, os.O_RDONLY)
    os.lseek(descriptor, 5, os.SEEK_SET)
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(b"another")
    file = open_file.arrow_file(descriptor)
    os.close(descriptor)
    with file:
        assert (file.size(), file.read()) == (10, b"0123456789")
        assert file.read_at(3, 4) == b"456"


def test_where_a_file_is_and_a_path_of_a_folder(tmp_path: Path, has_paths: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    file = os.open(tmp_path / "link", os.O_RDONLY)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert open_file.real_path(file, str(tmp_path / "link")) == str(tmp_path / "file")
        found = open_file.path_of_folder(folder, str(tmp_path))
        assert (found != str(tmp_path)) is has_paths
        assert sorted(os.listdir(found)) == ["file", "link"]
    finally:
        os.close(file)
        os.close(folder)
