"""Modules of this package whose code travels with what refers to it: it may be missing there."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def send_by_value(module: ModuleType) -> None:
    """Has pyspark send the module's code with it, although it is an installed module here.

    This is never taken back: another thread's question may be on its way.
    """
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    cloudpickle.register_pickle_by_value(module)
