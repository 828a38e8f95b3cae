"""``log_to_driver``: a message from any rank to the person at the driver, while the run goes on."""

from __future__ import annotations

import os

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import Text

MAX_MESSAGE_CHARACTERS = 4000

_line: WorkerPipe | None = None
_worker_pid: int | None = None


def connect(line: WorkerPipe) -> None:
    """Sends messages down ``line`` from now on. Called once, by the worker."""
    global _line, _worker_pid
    _line, _worker_pid = line, os.getpid()


def log_to_driver(message: str) -> None:
    """Shows a message on the driver, whatever ``driver_log_verbosity`` is.

    Outside a rank (in a plain script, or in a process that the function started) it prints.

    Args:
        message: The text. Beyond 4000 characters it is cut, as Databricks documents.

    Raises:
        TypeError: ``message`` is no string.
    """
    if not isinstance(message, str):
        raise TypeError(
            f"log_to_driver takes a string; it was given {message!r}, a {type(message).__name__}."
        )
    message = message[:MAX_MESSAGE_CHARACTERS]
    # A forked process shares the socket; two writers would tear each other's messages.
    if _line is None or os.getpid() != _worker_pid:
        print(message, flush=True)
        return
    _line.send(Text(message))
