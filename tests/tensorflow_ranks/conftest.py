"""Tests that need TensorFlow, which has an environment of its own: ``make test-tensorflow``."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quick_java
from processes import wait_until_gone, workers

sys.path.append(str(Path(__file__).parents[1] / "integration"))
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# Not what TensorFlow was compiled for, how it shares the processor, and the like.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
quick_java.use()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without TensorFlow nothing is tested here, which is an error where nobody would see it."""
    if importlib.util.find_spec("tensorflow") is not None:
        return
    reason = "TensorFlow is not installed: make test-tensorflow runs these where it is"
    if os.environ.get("CI"):
        raise pytest.UsageError(reason)
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    yield
    assert wait_until_gone("sparkdl_runner.launch.worker"), f"workers left behind: {workers()}"


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of Parquet files: 104 rows of ``id``, three ``features`` and their ``label``."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(0).random((104, 3), dtype=np.float32)
    columns = {
        "id": np.arange(104),
        "features": pa.FixedSizeListArray.from_arrays(numbers.ravel(), 3),
        "label": numbers.sum(1),
        "name": [f"row {row}" for row in range(104)],
    }
    folder = tmp_path_factory.mktemp("table")
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=13)
    return str(folder)


@pytest.fixture(scope="session")
def converter(table: str):
    from sparkdl_runner.data import make_spark_converter

    return make_spark_converter(table)


@pytest.fixture(scope="module")
def spark() -> Iterator:
    from spark_sessions import start_session

    session = start_session("local[2]")
    yield session
    session.stop()
