"""Importing large libraries without looking for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Turns garbage collection off for an import, where it is on.

    An import makes hundreds of thousands of objects and no garbage: Python would look through them
    again and again, for a tenth of the time of torch and a quarter of MLflow's.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
