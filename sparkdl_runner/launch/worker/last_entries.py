"""Sends what a function has logged before its worker is ended from outside."""

from __future__ import annotations

import threading
from contextlib import suppress

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import Delivered
from sparkdl_runner.tracking.rank.recorder import Recorder

# The wait is taken up again after that; it has no other end than a word of the agent.
_WAIT_SECONDS = 3600.0


def send_at_stop(line: WorkerPipe, recorder: Recorder) -> None:
    """Sends it once the agent wants the end, which then comes by a signal.

    Args:
        line: To the agent.
        recorder: Has what was logged.
    """

    def wait_and_send() -> None:
        while not line.wait(_WAIT_SECONDS):
            pass
        with suppress(OSError):  # The agent is gone, and this process will be.
            recorder.flush()
            line.send(Delivered())

    threading.Thread(target=wait_and_send, name="sparkdl-last-entries", daemon=True).start()
