"""Checks that a caller's number of steps, rows or bytes is a whole number within its range."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex


def require_whole(name: str, value: Any, *, least: int | None = 1, most: int | None = None) -> int:
    """The value as an int. NumPy's integers are fine, too.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is below ``least`` or above ``most``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; expected a whole number.")
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; expected {least} or more.")
    if most is not None and number > most:
        raise ValueError(f"{name} is {number}; expected {least} to {most}.")
    return number


def whole_number(
    name: str, value: SupportsIndex | None, *, least: int = 1, most: int | None = None
) -> int | None:
    """The same, and None stays None."""
    return None if value is None else require_whole(name, value, least=least, most=most)
