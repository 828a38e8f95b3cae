"""Entries that MLflow has yet to get, in a file that outlives a server's outage and the driver."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.tracking.entries import Entry

SPOOLS = "sparkdl_runner-mlflow"
"""The user's own folder of spools, one file for each run."""


class Spool:
    """A queue of entries in one file, readable by its owner alone: one entry a line.

    Entries are put in by any thread, and taken out by one.

    Args:
        path: The file. What an earlier driver left in it comes first.

    Raises:
        BlockingIOError: Another process has it open.
        OSError: It cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changing = threading.Condition()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise
        self.problem: str | None = None
        self._unwritten: list[Entry] = []
        self._read_from = 0
        self._sizes: deque[int] = deque()
        self._end = 0
        self._is_ending = False
        for line in os.pread(self._fd, os.fstat(self._fd).st_size, 0).splitlines(keepends=True):
            if not _is_whole(line):
                break  # The driver ended while it wrote.
            self._sizes.append(len(line))
            self._end += len(line)
        os.ftruncate(self._fd, self._end)

    def __len__(self) -> int:
        """Entries that wait."""
        with self._changing:
            return len(self._sizes) + len(self._unwritten)

    def put(self, entries: list[Entry]) -> None:
        """Adds entries. Where the disk is full they are kept in memory instead."""
        if not entries:
            return
        lines = [f"{json.dumps(entry)}\n".encode() for entry in entries]
        with self._changing:
            try:
                if self._unwritten:
                    raise OSError("what came before is still in memory")
                text = b"".join(lines)
                if os.write(self._fd, text) < len(text):
                    os.ftruncate(self._fd, self._end)
                    raise OSError("the disk is full")
                self._end += len(text)
                self._sizes.extend(map(len, lines))
            except OSError as error:
                self.problem = self.problem or f"metrics are not kept in {self.path}: {error}"
                self._unwritten += entries
            self._changing.notify_all()

    def peek(self, most: int, timeout_seconds: float) -> list[Entry]:
        """The oldest entries, at most so many; waits for the first."""
        with self._changing:
            self._changing.wait_for(
                lambda: self._sizes or self._unwritten or self._is_ending, timeout_seconds
            )
            if not self._sizes:
                return self._unwritten[:most]
            size = sum(itertools.islice(self._sizes, most))
            return [
                json.loads(line) for line in os.pread(self._fd, size, self._read_from).splitlines()
            ]

    def drop(self, count: int) -> None:
        """Removes the oldest entries: they are delivered, or refused for good."""
        with self._changing:
            if not self._sizes:
                del self._unwritten[:count]
            for _ in range(min(count, len(self._sizes))):
                self._read_from += self._sizes.popleft()
            if not self._sizes:
                os.ftruncate(self._fd, 0)
                self._end = self._read_from = 0
            self._changing.notify_all()

    def stop_waiting(self) -> None:
        """Lets ``peek`` return at once from now on, also with nothing."""
        with self._changing:
            self._is_ending = True
            self._changing.notify_all()

    def waiting(self) -> list[Entry]:
        """All entries that wait, the oldest first."""
        return self.peek(len(self._sizes), 0) if self._sizes else []

    def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Waits for all to be delivered. Returns whether it is."""
        with self._changing:
            return self._changing.wait_for(
                lambda: not self._sizes and not self._unwritten, timeout_seconds
            )

    def close(self) -> None:
        """Closes the file, and removes it if nothing is left in it."""
        with self._changing:
            if self._fd < 0:
                return
            if self._unwritten:
                with suppress(OSError):  # There may be room again.
                    text = "".join(f"{json.dumps(entry)}\n" for entry in self._unwritten)
                    os.write(self._fd, text.encode())
            os.close(self._fd)
            self._fd = -1
            if not self._sizes and not self._unwritten:
                self.path.unlink(missing_ok=True)


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), list)
    except (ValueError, RecursionError):
        return False
