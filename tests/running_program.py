"""A program that runs in the background and writes a log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

MINUTES = 5


class RunningProgram:
    """Used as a context, it has ended when that is left.

    Args:
        process: The program.
        log: The file of its output.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            first = psutil.Process(self._process.pid)
            for process in [first, *first.children(recursive=True)]:
                process.kill()
            self._process.wait()

    @property
    def output(self) -> str:
        """Its output until now."""
        return self._log.read_text(errors="replace")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until something holds while it runs."""
        deadline = time.monotonic() + MINUTES * 60
        while not holds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it came to no {what}:\n{self.output[-6000:]}")
            time.sleep(0.05)

    def wait(self) -> int:
        """Waits for its end. Returns its exit code."""
        return self._process.wait(MINUTES * 60)

    def succeed(self) -> str:
        """Waits until it has ended well. Returns its output."""
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.output[-6000:]}"
        return self.output
