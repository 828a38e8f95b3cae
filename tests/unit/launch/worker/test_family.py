"""What a worker has started ends with it, also what has left its group and its session."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid

import pytest

from sparkdl_runner.base import processes
from sparkdl_runner.launch.worker.lifeline import FAMILY, kill_family


def sleeper(family: str) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.environ["PATH"], FAMILY: family}
    process = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    while not processes.environment(process.pid):  # For a moment, the kernel shows none.
        time.sleep(0.001)
    return process


def test_a_family_is_found_by_its_name_and_no_other_process_is_touched() -> None:
    family = uuid.uuid4().hex
    with sleeper(family) as mine, sleeper(family[:-2]) as other:
        try:
            kill_family(family)
            assert mine.wait(120) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()
            mine.kill()


def test_a_process_that_just_starts_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = processes.environment, []

    def environment(pid: int) -> list[bytes]:
        seen.append(pid)
        return [] if pid == mine.pid and seen.count(pid) == 1 else real(pid)

    family = uuid.uuid4().hex
    with sleeper(family) as mine:
        try:
            monkeypatch.setattr(processes, "environment", environment)
            kill_family(family)
            assert mine.wait(120) == -signal.SIGKILL
        finally:
            mine.kill()
