"""What a worker finds in its environment."""

from __future__ import annotations

import pytest

from sparkdl_runner.worker_environment import worker_environment


def test_threads_are_those_of_the_task_unless_someone_has_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert worker_environment(threads=4)["OMP_NUM_THREADS"] == "4"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert worker_environment(threads=4)["OMP_NUM_THREADS"] == "1"
    assert worker_environment(threads=4, overrule=True)["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize("name", ["PYTHON_WORKER_FACTORY_SECRET", "PYSPARK_GATEWAY_SECRET"])
def test_secrets_of_spark_stay_out(monkeypatch, name):
    monkeypatch.setenv(name, "s3cret")
    assert name not in worker_environment(threads=1)
