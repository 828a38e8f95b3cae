"""Requests that this rank ends its training early, by SIGTERM or from the driver.

The driver asks by a pipe that only the rank's agent can write to.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sparkdl_runner.hooks import preemption

MOST_BYTES = 200
"""Of a reason, as UTF-8."""

_pipe: int | None = None
_told = ""


def connect(pipe: int) -> None:
    """Listens to the driver from now on, by the reading end of a pipe. Called by the worker."""
    global _pipe
    os.set_blocking(pipe, False)
    os.set_inheritable(pipe, False)
    _pipe = pipe


def reason() -> str:
    """Why this rank is to end; empty if it is not."""
    global _told
    if not _told and _pipe is not None:
        with suppress(OSError):  # Nobody has asked, or the agent is gone.
            _told = os.read(_pipe, MOST_BYTES).decode(errors="replace")
    if preemption.requested():
        return "SIGTERM, as its host is needed elsewhere"
    return _told
