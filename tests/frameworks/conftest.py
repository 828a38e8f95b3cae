"""Tests of libraries that have an environment of their own: ``make frameworks-today``."""

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
# All models are made here; nothing is asked of the hub.
os.environ["HF_HUB_OFFLINE"] = "1"
quick_java.use()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the libraries nothing is tested here, which is an error where nobody would see it."""
    if importlib.util.find_spec("deepspeed") is None:
        raise pytest.UsageError("DeepSpeed is not installed: run make frameworks-today.")
    for item in items:
        item.add_marker("integration")


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    yield
    assert wait_until_gone("sparkdl_runner.launch.worker"), f"workers left behind: {workers()}"


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """Two executors of one slot: two processes, and so two hosts to Spark."""
    from spark_sessions import start_session

    session = start_session("local-cluster[2,1,1024]")
    yield session
    session.stop()
