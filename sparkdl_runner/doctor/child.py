"""A child process that is asked something, and may crash, hang or talk nonsense without harm."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

# How long processes that were asked to end may take.
GRACE_SECONDS = 5.0
# How long the kernel may take to remove those that were killed.
KILL_SECONDS = 2.0
_KEPT_LINES = 400


class NoAnswerError(Exception):
    """The child ended, or said nothing in time. The text says which."""


class Child:
    """A process that takes one JSON line and answers in JSON lines, in a group of its own.

    Its standard input stays open until ``close``: the child may take its end as the sign to go.

    Args:
        command: What to start.
        request: What it is asked.
        environment: Its whole environment; None for this process's.
    """

    def __init__(
        self, command: Sequence[str], request: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._words: deque[str] = deque(maxlen=_KEPT_LINES)
        self._threads = [
            threading.Thread(target=target, name="sparkdl-doctor", daemon=True)
            for target in (self._read_answers, self._read_words)
        ]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with suppress(OSError):  # It has ended already, as the missing answer will tell.
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, deadline: float) -> dict[str, Any]:
        """Waits for its next answer.

        Args:
            deadline: By ``time.monotonic()``.

        Raises:
            NoAnswerError: There is none by then, or there will be none.
        """
        try:
            found = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise NoAnswerError("it did not answer in time") from None
        if found is not None:
            return found
        self._answers.put(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is not None and code < 0:
            raise NoAnswerError(f"it died of {signal.Signals(-code).name}")
        raise NoAnswerError(f"it ended with exit code {code}")

    def words(self) -> list[str]:
        """What it has written to its standard error so far: the last lines."""
        return list(self._words)

    def close(self) -> None:
        """Ends the child and all that it has started; some seconds at most."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        # Java's hooks remove its temporary files.
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            self._signal(number)
            while self._group_lives() and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(0.05)
        self._process.wait()
        for thread in self._threads:
            thread.join(1.0)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _group_lives(self) -> bool:
        """Whether one of its processes still runs; who is dead may wait long for being reaped."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError, PermissionError):
                if (
                    os.getpgid(process.pid) == self._process.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    return True
        return False

    def _read_answers(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        with self._process.stdout as stream:
            for line in stream:
                try:
                    found = json.loads(line)
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    self._answers.put(found)
                else:
                    self._words.append(line.decode(errors="replace").rstrip())
        self._answers.put(None)

    def _read_words(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - for the type checker
        with self._process.stderr as stream:
            for line in stream:
                self._words.append(line.decode(errors="replace").rstrip())
