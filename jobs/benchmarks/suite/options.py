"""Options that several parts have."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
