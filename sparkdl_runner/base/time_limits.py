"""Time limits that a thread keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


def answer_within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What a question is answered with; None if that takes longer, or fails.

    Args:
        seconds: How long to wait. The question itself goes on in a thread.
        ask: Asks it.
    """
    answers: list[T] = []

    def run() -> None:
        with suppress(Exception):  # The session ends meanwhile, or the right is missing.
            answers.append(ask())

    asking = threading.Thread(target=run, name="sparkdl-asking", daemon=True)
    asking.start()
    asking.join(seconds)
    return next(iter(answers), None)


@contextmanager
def called_after(seconds: float | None, call: Callable[[], object]) -> Iterator[None]:
    """Calls a function once so many seconds have passed, unless it is left before; None: never."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
