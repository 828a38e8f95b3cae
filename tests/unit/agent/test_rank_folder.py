"""A rank's folder goes with its agent, or with the next rank on the host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.agent.rank_folder import ABANDONED_SECONDS, RankFolder
from sparkdl_runner.tracking.rank_run import folder_prefix

HOLD = """
import sys, time
from sparkdl_runner.agent.rank_folder import RankFolder
folder = RankFolder(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


def new_folder(base: Path) -> Path:
    path = Path(tempfile.mkdtemp(prefix=folder_prefix(), dir=base))
    (path / "artifacts").mkdir()
    return path


def make_old(path: Path) -> None:
    long_ago = time.time() - ABANDONED_SECONDS - 60
    os.utime(path, (long_ago, long_ago))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Another process that holds a folder, and the folder."""
    held = new_folder(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", HOLD, held], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    make_old(held)
    yield process, held
    process.kill()
    process.wait()
    process.stdout.close()


def test_it_is_removed_at_the_end(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    folder = RankFolder(new_folder(tmp_path))
    folder.remove()
    folder.remove()
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before, "nor is what held it kept open"


def test_what_an_agent_holds_is_left_alone_until_it_is_killed(
    agent: tuple[subprocess.Popen, Path], tmp_path: Path
) -> None:
    process, held = agent
    RankFolder(new_folder(tmp_path)).remove()
    assert (held / "artifacts").is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    RankFolder(new_folder(tmp_path)).remove()
    assert not held.exists()


@pytest.mark.parametrize(
    "name", ["sparkdl_runner-logs-ana", "sparkdl_runner-rank-another-host-x", "precious"]
)
def test_what_is_new_or_not_of_this_host_s_ranks_is_left_alone(tmp_path: Path, name: str) -> None:
    new, other = new_folder(tmp_path), tmp_path / name
    other.mkdir()
    make_old(other)
    RankFolder(new_folder(tmp_path)).remove()
    assert new.is_dir()
    assert other.is_dir()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    make_old(precious)
    (tmp_path / f"{folder_prefix()}link").symlink_to(precious)
    RankFolder(new_folder(tmp_path)).remove()
    assert precious.is_dir()
