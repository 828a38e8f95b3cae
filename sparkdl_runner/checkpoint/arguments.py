"""Checks that a caller's numbers of steps, epochs and checkpoints are whole numbers."""

from __future__ import annotations

from typing import Any


def require_whole(name: str, value: Any, *, least: int) -> int:
    """The value, if it is a whole number and not too small.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected a whole number.")
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more.")
    return value
