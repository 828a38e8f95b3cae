"""Where the archive of Spark's classes is, and when Java is told to write or to use it."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from sparkdl_runner.jobs.spark import class_archive

WHOLE = class_archive.MAGIC.to_bytes(4, sys.byteorder) + bytes(96)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a Java 17, and a cache folder whose name has a space."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.13"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    for name in class_archive.FOREIGN_OPTIONS:
        monkeypatch.delenv(name, raising=False)
    return home


def told() -> tuple[str, Path]:
    """What Java is told to do with the archive, and where that is."""
    quiet, option = shlex.split(class_archive.java_options())
    assert quiet == "-Xlog:cds*=off"
    name, _, path = option.removeprefix("-XX:").partition("=")
    return name, Path(path)


@pytest.mark.usefixtures("java")
def test_is_written_until_it_is_whole_and_then_used() -> None:
    task, archive = told()
    assert task == "ArchiveClassesAtExit"
    archive.write_bytes(bytes(100))  # Java was ended while it wrote.
    assert told() == ("ArchiveClassesAtExit", archive)
    archive.write_bytes(WHOLE)
    assert told() == ("SharedArchiveFile", archive)


def test_another_java_has_its_own_and_what_nobody_uses_goes(java: Path) -> None:
    _, archive = told()
    archive.write_bytes(WHOLE)
    (java / "release").write_text('JAVA_VERSION="21.0.2"\n')
    task, other = told()
    assert task == "ArchiveClassesAtExit"
    assert other != archive
    assert archive.exists()
    ago = time.time() - class_archive.UNUSED_SECONDS - 60
    os.utime(archive, (ago, ago))
    told()
    assert not archive.exists()


@pytest.mark.parametrize("release", ['JAVA_VERSION="1.8.0_392"\n', 'JAVA_VERSION="11.0.2"\n', ""])
def test_an_older_java_is_told_nothing(java: Path, release: str) -> None:
    (java / "release").write_text(release)
    assert class_archive.java_options() == ""


def test_the_first_java_that_writes_archives_as_it_ends_does(java: Path) -> None:
    (java / "release").write_text('JAVA_VERSION="13.0.2"\n')
    assert told()[0] == "ArchiveClassesAtExit"


def test_a_java_that_does_not_say_its_release_is_told_nothing(java: Path) -> None:
    (java / "release").unlink()
    assert class_archive.java_options() == ""


@pytest.mark.parametrize("name", class_archive.FOREIGN_OPTIONS)
def test_a_java_that_is_told_more_has_none(
    java: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(java))
    assert class_archive.java_options() == ""


def test_a_folder_that_cannot_be_written_is_done_without(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(java / "release"))
    assert class_archive.java_options() == ""


@pytest.mark.usefixtures("java")
def test_an_archive_that_others_can_change_is_neither_used_nor_written() -> None:
    """Java runs what it holds."""
    _, archive = told()
    archive.write_bytes(WHOLE)
    archive.chmod(0o666)
    assert class_archive.java_options() == ""
    archive.unlink()
    archive.parent.chmod(0o777)
    assert class_archive.java_options() == ""
