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
from types import SimpleNamespace

import pytest

from open_files import no_file_left_open
from sparkdl_runner.launch.agent import rank_folder
from sparkdl_runner.launch.agent.rank_folder import (
    ABANDONED_SECONDS,
    RankFolder,
    leave_traces,
    log_sender,
)
from sparkdl_runner.launch.wire.messages import REFUSED, FilePart, LogPart
from sparkdl_runner.tracking.rank_run import folder_prefix

EMPTY = SimpleNamespace(path=None, size_bytes=0)
"""The log of a rank that has printed nothing."""
HOLD = """
import sys, time
from sparkdl_runner.launch.agent.rank_folder import RankFolder
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
    with no_file_left_open():  # Nor is what held it kept open.
        folder = RankFolder(new_folder(tmp_path))
        folder.remove()
        folder.remove()
    assert not list(tmp_path.iterdir())


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


def test_the_log_and_traces_are_sent_in_parts_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_folder, "FILE_PART_BYTES", 4)
    monkeypatch.setattr(rank_folder, "MAX_FILE_BYTES", 8)
    world = SimpleNamespace(rank=3, place="h")
    folder, log = tmp_path / "own", tmp_path / "rank-3.log"
    (folder / "artifacts" / "steps").mkdir(parents=True)
    log.write_bytes(b"0123456789")
    (folder / "artifacts" / "steps" / "a.json").write_bytes(b"01234567")
    (folder / "artifacts" / "b.json").write_bytes(b"012")
    (folder / "artifacts" / "empty").touch()
    (folder / "artifacts" / "link").symlink_to(log)
    sent: list[FilePart] = []
    log_sender(world, SimpleNamespace(path=log, size_bytes=10), sent.append)(FilePart)
    leave_traces(world, folder, sent.append)
    cut = f"\n... cut here: all of it is in {log} on host h\n".encode()
    assert sent == [
        FilePart("logs/rank_3", b"0123", True),
        FilePart("logs/rank_3", b"4567", False),
        FilePart("logs/rank_3", cut, False),
        FilePart("traces/b.json", b"012", True),
        FilePart("traces/steps/a.json", b"0123", True),
        FilePart("traces/steps/a.json", b"4567", False),
    ]
    sent.clear()
    for gone in (SimpleNamespace(path=tmp_path / "gone", size_bytes=1), EMPTY):
        log_sender(world, gone, sent.append)(FilePart)
    leave_traces(world, tmp_path / "without", sent.append)
    assert sent == []


def test_a_log_that_grows_is_sent_line_by_line_and_no_byte_of_it_twice(tmp_path):
    path = tmp_path / "rank-0.log"
    path.touch()
    log = SimpleNamespace(path=path, size_bytes=0)
    sent: list[FilePart] = []
    is_refusing = False

    def take(part: FilePart) -> None:
        if is_refusing:
            part.number = REFUSED
        else:
            sent.append(part)

    def print_line(line: bytes) -> None:
        with path.open("ab") as file:
            file.write(line)
        log.size_bytes += len(line)

    send = log_sender(SimpleNamespace(rank=0, place="h"), log, take)
    send(LogPart)
    print_line(b"one\n")
    send(LogPart)
    send(LogPart)
    print_line(b"two\nbegun")
    is_refusing = True
    send(LogPart)  # The driver takes nothing now.
    is_refusing = False
    send(LogPart)
    print_line(b" and ended\n")
    send(FilePart)
    send(FilePart)
    assert b"".join(part.data for part in sent) == path.read_bytes()
    assert [part.data for part in sent[:2]] == [b"one\n", b"two\n"]
    assert [part.is_first for part in sent] == [True, *[False] * (len(sent) - 1)]
    assert {type(part) for part in sent[:2]} == {LogPart}
    assert type(sent[-1]) is FilePart
