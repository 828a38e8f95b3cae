"""Passes a worker's output on to its log and the driver, and keeps the last lines for an error.

Only the log has what says nothing that a user could act on.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable

from sparkdl_runner.base.redaction import LONGEST_SHAPE_BYTES, Redactor
from sparkdl_runner.launch.agent.rank_log import RankLog
from sparkdl_runner.launch.agent.redrawn_lines import current_state, last_states, split_finished

TAIL_LINES = 40
MAX_LINE_CHARACTERS = 16 * 1024
# How often a line that has not ended is shown: bars draw themselves ten times as often.
UNFINISHED_SECONDS = 1.0
MAX_UNFINISHED_CHARACTERS = 500
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
        show_unfinished: Takes the line that has begun and not ended, as it is now; empty once there
            is none. None where nobody looks at it.
        now: The clock.
    """

    def __init__(
        self,
        *,
        show: Callable[[list[str]], None],
        log: RankLog,
        redact: Redactor,
        printed: Callable[[], None],
        show_unfinished: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show_lines = show
        self._log = log
        self._redact = redact
        self._printed = printed
        self._show_unfinished = show_unfinished
        self._now = now
        self._unfinished = ""
        self._unfinished_due_at = now()
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
                is_quiet = not poller.poll(OUTPUT_POLL_MILLISECONDS)
                if is_quiet and is_over.is_set():
                    break  # Another process still holds the pipe, and writes nothing.
                if not is_quiet:
                    chunk = pipe.read(64 * 1024)
                    if not chunk:
                        break
                    self._printed()
                    rest += chunk
                whole, rest = split_finished(rest, is_quiet=is_quiet)
                if whole:
                    self._show(whole)
                if len(rest) > max(MAX_LINE_CHARACTERS, 2 * self._kept_bytes):
                    rest = self._shortened(rest)
                self._look_at_unfinished(rest, is_quiet=is_quiet)
            if rest:
                self._show(rest)
            self._look_at_unfinished(b"", is_quiet=True)

    def _shortened(self, rest: bytes) -> bytes:
        """Forgets earlier states of a line, or shows the first part of an endless one."""
        states = last_states(rest)
        if len(states) < len(rest):
            return states
        # A secret that has come only in part stays in the rest until it is whole.
        rest = self._redact.raw(rest)
        self._show(rest[: -self._kept_bytes])
        return rest[-self._kept_bytes :]

    def _look_at_unfinished(self, rest: bytes, *, is_quiet: bool) -> None:
        """Shows the line that has not ended, at most once a second; and soon that it has."""
        if self._show_unfinished is None:
            return
        if not is_quiet and b"\r" not in rest:
            return  # A line that is just being written: Python may print it word by word.
        now = self._now()
        state = current_state(rest.replace(b"\n", b"\r"))
        has_ended = is_quiet and not state
        if now < self._unfinished_due_at and not has_ended:
            return
        state = self._redact.without_begun(self._redact.raw(state))
        text = _readable(state)[:MAX_UNFINISHED_CHARACTERS]
        if text != self._unfinished:
            self._unfinished = text
            self._unfinished_due_at = now + UNFINISHED_SECONDS
            self._show_unfinished(text)

    def _show(self, text: bytes) -> None:
        # Whole lines, so that no secret is missed because it came in two parts.
        text = last_states(self._redact.raw(text))
        self._log.write(text)
        lines = [_readable(raw) for raw in text.removesuffix(b"\n").split(b"\n")]
        lines = [line for line in lines if _NO_NAME not in line]
        self.tail.extend(lines)
        if lines:
            self._show_lines(lines)


def _readable(raw: bytes) -> str:
    return raw.decode(errors="replace")[:MAX_LINE_CHARACTERS]
