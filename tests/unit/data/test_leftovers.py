"""A sweep removes what a dead process of this machine left, and nothing else whatsoever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sparkdl_runner.data import sweep_leftovers
from sparkdl_runner.data.dataset import leftovers
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME, PREFIX, Owner, make_marked_directory


@pytest.fixture(autouse=True)
def _no_exit_handlers(monkeypatch):
    monkeypatch.setattr(leftovers.atexit, "register", lambda *args: None)


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def made(parent: Path, **changes) -> Path:
    """A directory with a file and a marker of this process, with ``changes`` to the marker."""
    path = parent / f"{PREFIX}{len(list(parent.iterdir())) if parent.exists() else 0}"
    path.mkdir(parents=True)
    owner = replace(Owner.this_process(path.name, "app"), **changes)
    (path / MARKER_NAME).write_text(json.dumps(asdict(owner)))
    (path / "part-0.parquet").write_text("data")
    return path


def sweep(parent: Path, **arguments) -> set[str]:
    return {url.rpartition("/")[2] for url in sweep_leftovers(f"file://{parent}", **arguments)}


def test_only_what_dead_processes_of_this_machine_left(tmp_path, dead_pid):
    alive = made(tmp_path)
    dead = made(tmp_path, pid=dead_pid)
    recycled = made(tmp_path, started_ticks=1)  # The id lives, for another one.
    elsewhere = [
        made(tmp_path, pid=dead_pid, hostname="another-host"),
        made(tmp_path, pid=dead_pid, boot_id="another boot"),
        made(tmp_path, pid=dead_pid, pid_namespace="pid:[1]"),
    ]
    assert sweep(tmp_path) == {dead.name, recycled.name}
    assert alive.exists()
    assert all(path.exists() for path in elsewhere)


def test_a_plain_path_means_this_host(tmp_path, dead_pid):
    dead = made(tmp_path, pid=dead_pid)
    assert sweep_leftovers(str(tmp_path)) == [f"file://{dead}"]


def test_other_machines_go_by_age_and_only_if_asked(tmp_path, dead_pid):
    hour_ago = time.time() - 3600
    old = made(tmp_path, hostname="another-host", created_unix_seconds=hour_ago)
    young = made(tmp_path, hostname="another-host")
    old_but_alive = made(tmp_path, created_unix_seconds=hour_ago)
    assert sweep(tmp_path) == set()
    assert sweep(tmp_path, older_than_seconds=1800) == {old.name}
    assert young.exists()
    assert old_but_alive.exists()
    with pytest.raises(ValueError, match="above 0"):
        sweep(tmp_path, older_than_seconds=0)


def test_what_was_not_made_here_is_never_touched(tmp_path, dead_pid):
    dead = made(tmp_path, pid=dead_pid)
    marker = (dead / MARKER_NAME).read_text()
    others = {
        "users-own": marker,  # Another name, even with a marker.
        f"{PREFIX}copied": marker,  # The marker names another directory.
        f"{PREFIX}unmarked": None,
        f"{PREFIX}torn": marker[:20],
        f"{PREFIX}list": "[]",
        f"{PREFIX}more": json.dumps({**json.loads(marker), "directory": f"{PREFIX}more", "x": 1}),
    }
    for name, text in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("keep me")
        if text is not None:
            (tmp_path / name / MARKER_NAME).write_text(text)
    (tmp_path / f"{PREFIX}file").write_text("a file")
    assert sweep(tmp_path) == {dead.name}
    for name in others:
        assert (tmp_path / name / "precious").read_text() == "keep me"


def test_links_are_not_followed(tmp_path, dead_pid):
    target = made(tmp_path / "elsewhere", pid=dead_pid)
    parent = tmp_path / "cache"
    parent.mkdir()
    (parent / target.name).symlink_to(target)
    inside = made(parent, pid=dead_pid)
    (inside / "link").symlink_to(target)
    assert sweep(parent) == {inside.name}
    assert (target / "part-0.parquet").exists()


def test_a_parent_that_is_not_there(tmp_path):
    assert sweep(tmp_path / "nothing") == set()


def test_a_marked_directory_says_whose_it_is(tmp_path):
    url = make_marked_directory(f"file://{tmp_path}/deep/cache", "application-7")
    path = Path(url.removeprefix("file://"))
    owner = Owner(**json.loads((path / MARKER_NAME).read_text()))
    assert owner.directory == path.name
    assert "appid-application-7" in path.name
    assert (owner.pid, owner.is_on_this_machine(), owner.is_gone()) == (os.getpid(), True, False)


def test_exit_deletes_only_in_the_process_that_made_it(tmp_path):
    url = make_marked_directory(f"file://{tmp_path}", "app")
    path = Path(url.removeprefix("file://"))
    leftovers._delete_at_exit(url, None, os.getpid() + 1)  # As in a fork.
    assert path.exists()
    leftovers._delete_at_exit(url, None, os.getpid())
    assert not path.exists()
    leftovers._delete_at_exit(url, None, os.getpid())  # Gone already: fine.


def test_no_directory_is_left_without_a_marker(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "MARKER_NAME", "no/such/directory")
    with pytest.raises(OSError, match="no/such"):
        make_marked_directory(f"file://{tmp_path}", "app")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("instead", ["a link", "another folder"])
def test_what_takes_a_leftovers_place_while_it_is_swept_stays(
    tmp_path, dead_pid, monkeypatch, instead
):
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    leftover = made(shared, pid=dead_pid)
    mine.mkdir()
    (mine / "thesis").write_text("years of work")
    has_left = Owner.has_left

    def swapped_meanwhile(owner: Owner, older_than_seconds: float | None) -> bool:
        leftover.rename(shared / "moved")
        if instead == "a link":
            leftover.symlink_to(mine)
        else:
            mine.rename(leftover)
        return has_left(owner, older_than_seconds)

    monkeypatch.setattr(Owner, "has_left", swapped_meanwhile)
    assert sweep(shared) == set()
    assert (leftover / "thesis").read_text() == "years of work"
    assert list((shared / "moved").iterdir()) == []


def test_a_leftovers_links_are_deleted_and_not_what_they_lead_to(tmp_path, dead_pid):
    leftover, mine = made(tmp_path / "shared", pid=dead_pid), tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("years of work")
    (leftover / "folder").mkdir()
    (leftover / "folder" / "link").symlink_to(mine)
    (leftover / "link").symlink_to(mine)
    assert sweep(tmp_path / "shared") == {leftover.name}
    assert (mine / "thesis").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_not_swept(tmp_path, dead_pid):
    theirs = made(tmp_path, pid=dead_pid)
    os.chown(theirs, 65534, 65534)
    assert sweep(tmp_path) == set()
    assert theirs.exists()
