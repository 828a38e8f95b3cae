"""Parses Python's source while other threads do so too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_TRIES = 10

_Parsed = TypeVar("_Parsed")


def undisturbed(parse: Callable[[], _Parsed]) -> _Parsed:
    """Returns what ``parse`` returns.

    Python 3.11 counts the depth of all threads' syntax trees in one number. If two threads parse
    at once, as those of a CrossValidator do, one of them may get a ``SystemError`` though its
    source is good. Such a meeting is rare and short, so it is tried again.

    Args:
        parse: Calls ``ast.parse``, or ``inspect.getsource`` of a class, which does.

    Raises:
        SystemError: Another thread parsed at each of ten tries.
    """
    for _ in range(_TRIES - 1):
        with suppress(SystemError):
            return parse()
    return parse()
