"""Modules of this package whose code travels with what refers to it: it may be missing there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """Lets pyspark send the module's code, although it is an installed module here."""
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
