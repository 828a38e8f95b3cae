"""The same is known of processes from /proc and from psutil, as far as a program asks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from sparkdl_runner.base import processes


@pytest.fixture(params=[True, False], ids=["proc", "psutil"])
def has_proc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(processes, "HAS_PROC", request.param)
    return bool(request.param)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environment = {"PATH": os.environ["PATH"], "OF_THE_SLEEPER": "a=b"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()


def wait_for(pid: int, state: str) -> None:
    deadline = time.monotonic() + 60
    while (found := processes.stat(pid)) is None or found.state != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


@pytest.mark.usefixtures("has_proc")
def test_a_process_is_seen_to_stop_and_to_end(sleeper: subprocess.Popen[bytes]) -> None:
    wait_for(sleeper.pid, "S")
    first = processes.stat(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    wait_for(sleeper.pid, "T")
    sleeper.kill()
    wait_for(sleeper.pid, "Z")
    last = processes.stat(sleeper.pid)
    assert first is not None
    assert last is not None
    assert (first.has_ended, last.has_ended) == (False, True)
    assert first.started_ticks == last.started_ticks > 0
    sleeper.wait()
    assert processes.stat(sleeper.pid) is None
    assert processes.stat(1 << 80) is None


@pytest.mark.usefixtures("has_proc")
def test_its_environment_is_read_and_its_time_counts(sleeper: subprocess.Popen[bytes]) -> None:
    assert sleeper.pid in processes.ids()
    while not (found := processes.environment(sleeper.pid)):
        time.sleep(0.001)
    assert b"OF_THE_SLEEPER=a=b" in found
    assert processes.environment(1 << 22) == []
    until = time.process_time() + 0.1
    before = processes.stat(os.getpid())
    while time.process_time() < until:
        pass
    after = processes.stat(os.getpid())
    assert before is not None
    assert after is not None
    assert after.cpu_seconds - before.cpu_seconds >= 0.05


def test_of_single_threads_psutil_says_nothing(has_proc: bool) -> None:
    assert (processes.stat(os.getpid(), os.getpid()) is not None) is has_proc
