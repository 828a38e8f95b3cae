"""Asks installed programs about a worker that hangs: pystack and ncclras."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

# NCCL itself waits 5 s for a rank that does not answer, and says then which one that is.
NATIVE_SECONDS, NCCL_SECONDS = 2.0, 10.0
MOST_BYTES = 4096


def native_frames(pid: int, marks: Mapping[str, str], is_over: Callable[[], bool]) -> str:
    """The output of pystack for the process; empty if that is not installed.

    Args:
        pid: The process.
        marks: Variables by which who ends the process finds the program, too.
        is_over: Whether nobody waits any more.
    """
    if importlib.util.find_spec("pystack") is None:
        return ""
    command = [sys.executable, "-P", "-m", "pystack", "remote", "--native", str(pid)]
    return _answer("pystack", command, NATIVE_SECONDS, marks, is_over)


def nccl_report(marks: Mapping[str, str], is_over: Callable[[], bool]) -> str:
    """The output of ncclras (NCCL 2.24), which is of all ranks; empty if that is not installed."""
    path = shutil.which("ncclras")
    return "" if path is None else _answer("ncclras", [path], NCCL_SECONDS, marks, is_over)


def _answer(
    name: str,
    command: list[str],
    seconds: float,
    marks: Mapping[str, str],
    is_over: Callable[[], bool],
) -> str:
    """The end of what a program prints. Killed with its children after so long, or once over."""
    environment = {**os.environ, **marks}
    try:
        process = Popen(
            command,
            env=environment,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"({error})"
    output, deadline = b"", time.monotonic() + seconds
    with process.stdout as pipe:  # type: ignore[union-attr]
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        while not (is_late := time.monotonic() > deadline) and not is_over():
            if poller.poll(100):
                if not (chunk := os.read(pipe.fileno(), 1 << 16)):
                    break
                output = (output + chunk)[-MOST_BYTES:]
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutExpired):  # It waits in the kernel.
        process.wait(1.0)
    note = f"({name} had not ended after {seconds:g} s, and was killed)" if is_late else ""
    return f"{output.decode(errors='replace').strip()}\n{note}".strip()
