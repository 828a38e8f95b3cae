"""A plugin of pytest for the tests of Horovod's Spark estimators.

Where FOREIGN_RUN is set, ``horovod.spark``'s ``run`` and ``run_elastic`` are this package's.
Where FOREIGN_BACKEND is set, the estimators get this package's ``SparkBackend`` for Horovod's, and
for the one by which some tests train in their own process. In any case their store looks at Parquet
files as ``create_store`` does, since with Arrow 14 Horovod's own cannot.
"""

from __future__ import annotations

import functools
import os

import horovod.spark
import pytest
from horovod.spark.common import estimator, store

from sparkdl_runner import RunConfig
from sparkdl_runner.horovod import SparkBackend, spark
from sparkdl_runner.horovod.store import parquet_dataset

store.AbstractFilesystemStore.get_parquet_dataset = parquet_dataset

if os.environ.get("FOREIGN_RUN"):
    config = RunConfig(tracking=False)
    horovod.spark.run = functools.partial(spark.run, run_config=config)
    horovod.spark.run_elastic = functools.partial(spark.run_elastic, run_config=config)


def _backend(num_proc: int, verbose: int = 0) -> SparkBackend:
    return SparkBackend(num_proc)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts this package's backend where the tests find theirs."""
    if os.environ.get("FOREIGN_BACKEND"):
        estimator.SparkBackend = _backend
        for module in {item.getparent(pytest.Module) for item in items}:
            assert module is not None
            module.obj.CallbackBackend = functools.partial(_backend, 1)
