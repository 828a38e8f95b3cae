"""A job in a thread of its own, and what the driver's JVM is told of the end of a script."""

from __future__ import annotations

import atexit
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from sparkdl_runner.launch.driver.spark import job as spark_job


@pytest.mark.parametrize(("version", "times"), [("3.5.9", 1), ("4.0.1", 0)])
def test_the_barriers_timer_is_ended_once_with_the_script(monkeypatch, version, times):
    at_exit = []
    monkeypatch.setattr(spark_job, "_jvm_will_exit", False)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    jvm = MagicMock()
    for _ in range(2):
        spark_job.let_the_jvm_exit(SimpleNamespace(version=version, _jvm=jvm))
    cancel = jvm.java.lang.Class.forName().getMethod().invoke().cancel
    assert not cancel.called
    for end in at_exit:
        end()
    assert cancel.call_count == times


def test_a_job_says_whether_it_has_ended(monkeypatch):
    # A thread that inherits Spark's properties asks for a context wherever Spark's JVM has run.
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    may_end = threading.Event()
    job = spark_job.SparkAction(lambda: may_end.wait() and [])
    assert job.wait(0.0) is False
    may_end.set()
    assert job.wait(120.0) is True
    assert job.result() == []
