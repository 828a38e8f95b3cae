"""Passes a worker's output on to its log and the driver, and keeps the last lines for an error.

Only the log has what says nothing that a user could act on.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable

from sparkdl_runner.base.redaction import LONGEST_SHAPE_BYTES, Redactor
from sparkdl_runner.launch.agent.rank_log import RankLog

TAIL_LINES = 40
MAX_LINE_CHARACTERS = 16 * 1024
OUTPUT_POLL_MILLISECONDS = 250
# torch writes this in each process where an address has no name, as in pods. It uses the address.
_NO_NAME = "[c10d] The hostname of the client socket cannot be retrieved"


class OutputRelay:
    """Relays what one worker prints.

    Args:
        show: Takes lines.
        log: Where all of it is written.
        redact: Takes secrets out.
        printed: Called whenever something was printed.
    """

    def __init__(
        self,
        *,
        show: Callable[[list[str]], None],
        log: RankLog,
        redact: Redactor,
        printed: Callable[[], None],
    ) -> None:
        self._show_lines = show
        self._log = log
        self._redact = redact
        self._printed = printed
        # A long line is shown in pieces. So much of it is kept back, as a secret may begin there.
        self._kept_bytes = max(redact.longest_bytes, LONGEST_SHAPE_BYTES)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines."""

    def run(self, output: int, is_over: threading.Event) -> None:
        """Relays until all ends that can be written to are closed, and closes this one.

        Args:
            output: The reading end of the pipe.
            is_over: Set once the worker is gone, so that silence is the end.
        """
        rest = b""
        poller = select.poll()
        poller.register(output, select.POLLIN)
        with open(output, "rb", buffering=0) as pipe:
            while True:
                if not poller.poll(OUTPUT_POLL_MILLISECONDS):
                    if is_over.is_set():
                        break  # Another process still holds the pipe, and writes nothing.
                    continue
                chunk = pipe.read(64 * 1024)
                if not chunk:
                    break
                self._printed()
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    self._show(whole + newline)
                if len(rest) > max(MAX_LINE_CHARACTERS, 2 * self._kept_bytes):
                    # A secret that has come only in part stays in the rest until it is whole.
                    rest = self._redact.raw(rest)
                    self._show(rest[: -self._kept_bytes])
                    rest = rest[-self._kept_bytes :]
            if rest:
                self._show(rest)

    def _show(self, text: bytes) -> None:
        # Whole lines, so that no secret is missed because it came in two parts.
        text = self._redact.raw(text)
        self._log.write(text)
        lines = [_readable(raw) for raw in text.removesuffix(b"\n").split(b"\n")]
        lines = [line for line in lines if _NO_NAME not in line]
        self.tail.extend(lines)
        if lines:
            self._show_lines(lines)


def _readable(raw: bytes) -> str:
    """Decodes a line; of a progress bar that rewrites itself, the last state is kept."""
    text = raw.decode(errors="replace").rstrip("\r")
    return text.rpartition("\r")[2][:MAX_LINE_CHARACTERS]
