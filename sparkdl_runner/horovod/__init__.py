"""``sparkdl.horovod`` and ``horovod.spark`` under this package's name, and Horovod's estimators.

Importing it imports neither horovod nor pyspark; what is for the estimators is loaded when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sparkdl_runner.launch.worker.driver_log import log_to_driver

if TYPE_CHECKING:
    from sparkdl_runner.horovod import spark as spark
    from sparkdl_runner.horovod.spark_backend import SparkBackend as SparkBackend
    from sparkdl_runner.horovod.store import create_store as create_store

_HOMES = {"SparkBackend": "spark_backend", "create_store": "store"}

__all__ = ["SparkBackend", "create_store", "log_to_driver"]


def __getattr__(name: str) -> Any:
    if name == "spark":  # As ``import horovod.spark`` has it.
        return importlib.import_module(f"{__name__}.spark")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
