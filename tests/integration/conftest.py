"""One Spark session per kind of master, and no process left by any test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from spark_sessions import session_on

import quick_java
from processes import wait_until_gone, workers

# Before any session starts: executors must run the Python of these tests, on no network.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
quick_java.use()


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    yield
    assert wait_until_gone("sparkdl_runner.launch.worker"), f"workers left behind: {workers()}"


@pytest.fixture(scope="session")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder which, on the search path, makes torch a module that cannot be imported."""
    folder = tmp_path_factory.mktemp("no-torch")
    (folder / "torch.py").write_text("raise ImportError('these ranks are to do without torch')\n")
    return str(folder)


@pytest.fixture
def light_ranks(no_torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local ranks do without torch: to import it takes most of the time of a rank that ends soon.

    Horovod is the backend for them; the other one is torch's.
    """
    monkeypatch.syspath_prepend(no_torch)


@pytest.fixture
def light_spark_ranks(no_torch: str, spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for Spark's: its Python processes, and so their ranks, get another search path."""
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", no_torch)


@pytest.fixture(scope="session")
def sessions() -> Iterator[dict]:
    """The running session by its master; at most one."""
    running: dict = {}
    yield running
    for session in running.values():
        session.stop()


@pytest.fixture
def spark(sessions):
    """A session with two slots in the driver's own process."""
    return session_on(sessions, "local[2]")
