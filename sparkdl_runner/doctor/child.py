"""A child process that is asked something, and may crash, hang or print nonsense without harm."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import psutil

# How long processes that were asked to end may take.
GRACE_SECONDS = 5.0
# How long the kernel may take to remove those that were killed.
KILL_SECONDS = 2.0


class Child:
    """A process that takes one JSON line and answers in JSON lines, in a group of its own.

    Its standard input stays open until ``close``: the child may take its end as the sign to go.

    Args:
        command: What to start.
        request: What it is asked, unless its arguments say that.
        environment: Its whole environment; None for this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        request: Any = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = _file_for_errors()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="sparkdl-doctor", daemon=True)
        self._reader.start()
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with suppress(OSError):  # It has ended already, as the missing answer will tell.
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def answer(
        self, deadline: float, *, words: int = 0, late: str = "it did not answer in time"
    ) -> dict[str, Any]:
        """Waits for its next answer, which is ``{"error": …}`` if there will be none.

        Args:
            deadline: By ``time.monotonic()``.
            words: How many of its last lines follow the reason in that error.
            late: The reason, if it has neither answered nor ended by then.
        """
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            reason = late
        else:
            if answer is not None:
                return answer
            self._answers.put(None)
            reason = self._end()
        return {"error": "; ".join([reason, *(self.output()[-words:] if words else ())])}

    def output(self) -> list[str]:
        """The lines that it has written to its standard error so far."""
        file = self._errors.fileno()
        written = os.pread(file, os.fstat(file).st_size, 0)
        return written.decode(errors="replace").splitlines()

    def close(self) -> None:
        """Ends the child and all that it has started; some seconds at most."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        # A JVM that is asked to end removes its temporary files.
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            while self._group_lives() and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):  # One that a dead disk holds lives on.
            self._process.wait(KILL_SECONDS)
        self._reader.join(1.0)
        self._errors.close()

    def _end(self) -> str:
        """How it ended, which closes its output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"it died of {signal.Signals(-code).name}"
        return f"it ended with exit code {code}"

    def _group_lives(self) -> bool:
        """Whether a process of its group runs. A zombie, which may never be reaped, does not."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError, PermissionError):
                if (
                    os.getpgid(process.pid) == self._process.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    return True
        return False

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        with self._process.stdout as stream:
            for line in stream:
                with suppress(ValueError):  # A library has printed something.
                    answer = json.loads(line)
                    if isinstance(answer, dict):
                        self._answers.put(answer)
        self._answers.put(None)


def _file_for_errors() -> IO[bytes]:
    """A file without a name; in memory where that can be, since the disk may be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("sparkdl-doctor"), "rb", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
