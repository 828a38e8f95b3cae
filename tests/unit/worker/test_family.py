"""What a worker has started ends with it, also what has left its group and its session."""

from __future__ import annotations

import os
import signal
import subprocess

from sparkdl_runner.worker.lifeline import FAMILY, kill_family


def test_a_family_is_found_by_its_name_and_no_other_process_is_touched() -> None:
    def sleeper(family: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], FAMILY: family}
        return subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)

    with sleeper("0a" * 16) as mine, sleeper("0a" * 15) as other:
        try:
            kill_family("0a" * 16)
            assert mine.wait(30) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()
            mine.kill()
