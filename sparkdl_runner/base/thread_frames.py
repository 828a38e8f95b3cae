"""The current stack frame of each thread."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def current_frames() -> dict[int, FrameType]:
    """``sys._current_frames()``, in which no garbage is collected.

    Before 3.11.8 and 3.12.2, Python waits for itself for ever if it collects some there
    (gh-106883). No other thread runs between these lines unless it is its turn, which costs it a
    collection at most.
    """
    if not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
