"""Standard output kept for a program that reads it: what else is printed goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

_kept: list[TextIO] = []


def for_programs() -> TextIO:
    """The stream that a program reads."""
    return _kept[-1] if _kept else sys.stdout


@contextmanager
def kept_for_programs() -> Iterator[None]:
    """Keeps standard output for what is written to ``for_programs()``, until the block ends."""
    if _kept or sys.stdout is None:  # For --json and events alike; or there is none.
        yield
        return
    before = stream = sys.stdout
    number = None
    stream.flush()
    with suppress(OSError, ValueError):  # Python's alone.
        if stream.fileno() == 1:  # A notebook's stream has that of its server's terminal.
            number = 1
            stream = os.fdopen(os.dup(number), "w", encoding="utf-8")
    _kept.append(stream)
    try:
        with redirect_stdout(sys.stderr):
            if number is not None:  # Libraries and child processes print to the descriptor.
                os.dup2(2, number)
            yield
    finally:
        _kept.remove(stream)
        if number is not None:
            with suppress(OSError, ValueError):  # What others have written to the old one.
                before.flush()
            os.dup2(stream.fileno(), number)
            with suppress(OSError):  # What could not be written was told when it was.
                stream.close()
