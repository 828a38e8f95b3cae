"""Requests that this rank ends its training early, by SIGTERM, from its agent or from the driver.

The agent asks, for the driver or by itself, by a pipe that only it can write to: lines of a kind
and a reason.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sparkdl_runner.rank import preemption

MOST_BYTES = 200
"""The longest reason, as UTF-8."""
STOP, PREEMPT, GROW = b".", b"!", b"+"
"""The kinds of requests: to end soon; to end with a checkpoint, since the host is taken away; and
to end with the next checkpoint, to be started again as more ranks."""

_pipe: int | None = None
_told: dict[bytes, str] = {}


def connect(pipe: int) -> None:
    """Listens to the driver from now on, by the reading end of a pipe. Called by the worker."""
    global _pipe
    os.set_blocking(pipe, False)
    os.set_inheritable(pipe, False)
    _pipe = pipe


def packed(kind: bytes, reason: str) -> bytes:
    """A request as it goes through the pipe, whole at once: see pipe(7) on PIPE_BUF."""
    return kind + reason.encode()[:MOST_BYTES].replace(b"\n", b" ") + b"\n"


def reason() -> str:
    """Why this rank is to end; empty if it is not."""
    return preemption_reason() or _told.get(STOP, "")  # The first has read the pipe.


def preemption_reason() -> str:
    """Why this rank's host will be taken away; empty if that is not known."""
    if preemption.requested():
        return "SIGTERM, as its host is needed elsewhere"
    return _heard(PREEMPT)


def growth() -> str:
    """Why there can be more ranks than now; empty if there cannot."""
    return _heard(GROW)


def _heard(kind: bytes) -> str:
    if _pipe is not None:
        with suppress(OSError):  # No request is open, or the agent is gone.
            for line in os.read(_pipe, 4 * MOST_BYTES).split(b"\n"):
                _told.setdefault(line[:1], line[1:].decode(errors="replace"))
    return _told.get(kind, "")
