"""Questions to a cluster manager, which may not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
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
