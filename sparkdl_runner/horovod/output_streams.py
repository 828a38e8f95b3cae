"""The streams to which ``horovod.spark.run`` redirects what ranks print, line by line."""

from __future__ import annotations

import functools
import io
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from typing import Any, TextIO

from sparkdl_runner.base import shown_text
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

# A rank has one pipe for all that it prints. So its lines of stderr begin with this.
_ERROR = "<stderr>:"


class OutputStreams(Reports):
    """Writes the lines of ranks to streams, as Horovod does: ``[1]<stdout>:a line``.

    Args:
        stdout: Takes what ranks print on stdout; None for the driver's own.
        stderr: The same of stderr.
        with_time: Whether each line begins with the time.
    """

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None, *, with_time: bool) -> None:
        self._stdout, self._stderr, self._with_time = stdout, stderr, with_time
        self._writing = threading.Lock()

    def printed(self, world: World, lines: list[str]) -> bool:
        """See ``Reports.printed``. A stream that is closed must not end a training."""
        begin = time.asctime() if self._with_time else ""
        # Agents' lines come from a thread each, and streams are not made for several.
        with self._writing, suppress(OSError, ValueError):
            for line in lines:
                is_error = line.startswith(_ERROR)
                stream = (self._stderr or sys.stderr) if is_error else (self._stdout or sys.stdout)
                text = shown_text.line(line.removeprefix(_ERROR), colours=True)
                kind = "stderr" if is_error else "stdout"
                stream.write(f"{begin}[{world.rank}]<{kind}>:{text}\n")
        return True


def with_marked_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes of a function one whose lines on ``sys.stderr`` ``OutputStreams`` tells apart."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        marked = _MarkedLines()
        with redirect_stderr(marked):
            try:
                return function(*args, **kwargs)
            finally:
                marked.close()

    return call


class _MarkedLines(io.TextIOBase):
    """A stream that writes whole lines to the rank's stderr, each with the mark."""

    def __init__(self) -> None:
        self._below, self._rest = sys.stderr, ""
        self._writing = threading.Lock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._below.fileno()

    def write(self, text: str) -> int:
        with self._writing:
            *whole, self._rest = (self._rest + text).split("\n")
            if whole:
                # In one call, so that lines of stdout do not run into them.
                self._below.write("".join(f"{_ERROR}{line}\n" for line in whole))
                self._below.flush()
        return len(text)

    def close(self) -> None:
        if self._rest:
            self.write("\n")
        super().close()
