"""Reading and writing in a folder in which another user has put pipes and links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from parquet_sets import LOCAL

from sparkdl_runner.base.foreign_file import ForeignFileError
from sparkdl_runner.data.dataset.held_folder import held


def test_a_file_is_written_as_the_umask_says_and_over_an_earlier_one(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with held(LOCAL, str(tmp_path)) as folder:
            folder.write("a", b"a longer text")
            folder.write("a", b"text")
            assert folder.read("a", 4) == b"text"
            with pytest.raises(ForeignFileError, match="more than the 3 bytes"):
                folder.read("a", 3)
            folder.remove("a")
            folder.write("b", b"")
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("b", 0o640)


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_pipe_is_neither_waited_for_nor_written_to(tmp_path: Path, has_reader: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK) if has_reader else -1
    try:
        with held(LOCAL, str(tmp_path)) as folder:
            with pytest.raises(OSError, match="pipe"):
                folder.write("pipe", b"text")
            with pytest.raises(OSError, match="pipe"):
                folder.read("pipe", 9)
    finally:
        if has_reader:
            assert os.read(reader, 9) == b""
            os.close(reader)


def test_a_folder_that_is_a_link_is_held_only_where_it_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with pytest.raises(OSError, match="link"), held(LOCAL, f"{tmp_path}/link"):
        pass
    with held(LOCAL, f"{tmp_path}/link", may_be_link=True) as folder:
        folder.write("a", b"")
    assert (tmp_path / "disk" / "a").exists()
