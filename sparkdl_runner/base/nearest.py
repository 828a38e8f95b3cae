"""Suggests the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The hint after an unknown name: the nearest one, else all known names.

    Returns:
        The end of the sentence, from a semicolon to the full stop or the question mark.
    """
    known = list(known)
    near = nearest(given, known)
    if near != ".":
        return near
    return f"; there are {', '.join(known)}." if known else "."


def nearest(given: object, known: Iterable[str]) -> str:
    """Ends a sentence about an unknown name: names the nearest one, or adds only a full stop."""
    matches = difflib.get_close_matches(str(given), list(known), 1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else "."
