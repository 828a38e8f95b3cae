"""A rank takes over those folders of the driver's search path that nobody else can change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdl_runner.launch.worker.driver_folders import (
    changeable_by_others,
    new_folders,
    own_files,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ours, below one of ours."""
    (tmp_path / "project" / "code").mkdir(parents=True)
    return tmp_path / "project" / "code"


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a file another user's: root can, and for others all of their files become that."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 54321, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 54321)

    return give


def test_what_is_ours_alone_is_taken_over(folder: Path) -> None:
    folder.chmod(0o755)
    assert changeable_by_others(str(folder)) is None
    # Below a folder like /tmp, in which others cannot rename what is ours.
    folder.parent.chmod(0o1777)
    assert changeable_by_others(str(folder)) is None
    assert changeable_by_others("/usr") is None


@pytest.mark.parametrize("which", ["itself", "above", "link", "behind a link"])
def test_what_belongs_to_another_user_is_not(
    folder: Path, give_away: Callable[[Path], None], which: str
) -> None:
    asked = folder
    if "link" in which:
        asked = folder.parent / "link"
        asked.symlink_to(folder)
    given = {"itself": folder, "above": folder.parent, "link": asked, "behind a link": folder}
    give_away(given[which])
    assert "belongs to another user" in (changeable_by_others(str(asked)) or "")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_others_write_to_is_not(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert f"others may write to {folder} (mode {mode:o})" in (
        changeable_by_others(str(folder)) or ""
    )


def test_nor_below_one_that_others_write_to(folder: Path) -> None:
    folder.parent.chmod(0o777)
    assert f"others may write to {folder.parent}" in (changeable_by_others(str(folder)) or "")


def test_an_archive_that_others_write_to_is_not(folder: Path) -> None:
    archive = folder / "code.zip"
    archive.touch(mode=0o644)
    assert changeable_by_others(str(archive)) is None
    archive.chmod(0o646)
    assert "code.zip" in (changeable_by_others(str(archive)) or "")


def test_a_folder_of_a_stranger_is_left_out_and_that_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    open_to_all = folder.parent / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    paths = [str(open_to_all), str(folder), "/nowhere/at/all", sys.path[-1]]
    assert new_folders(paths, "another host") == [str(folder)]
    told = capfd.readouterr().err
    assert f"{open_to_all} of the driver's sys.path is not searched for modules" in told
    assert "/nowhere" not in told
    # The driver imports from there itself.
    assert new_folders(paths, own_files()) == [str(open_to_all), str(folder)]
    # What is not known is no proof that they see the same files.
    monkeypatch.setattr("sparkdl_runner.launch.worker.driver_folders.boot_id", lambda: "")
    assert new_folders(paths, "") == [str(folder)]
