"""Folders that this user alone can look into, where every user of the host may write."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from sparkdl_runner.base.private_folder import private_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.lstat().st_mode)


def test_it_is_the_same_one_each_time_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        folder = private_folder("x")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert private_folder("x") == folder


def test_one_that_others_could_read_is_closed(temporary: Path) -> None:
    """As earlier versions have left them."""
    folder = private_folder("x")
    folder.chmod(0o755)
    assert private_folder("x") == folder
    assert mode(folder) == 0o700


@pytest.mark.parametrize("planted", ["writable", "another user's", "a link", "a file"])
def test_what_somebody_else_may_have_made_is_not_used(temporary: Path, planted: str) -> None:
    folder = private_folder("x")
    if planted == "writable":
        folder.chmod(0o770)
    elif planted == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)
    else:
        folder.rmdir()
        if planted == "a link":
            (temporary / "theirs").mkdir()
            folder.symlink_to(temporary / "theirs")
        else:
            folder.touch()
    instead = private_folder("x")
    assert instead != folder
    assert mode(instead) == 0o700
