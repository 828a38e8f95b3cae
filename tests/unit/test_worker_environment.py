"""What a worker finds in its environment."""

from __future__ import annotations

import os
import sys
import sysconfig

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


def test_only_what_comes_before_the_interpreters_packages_comes_before_them(monkeypatch):
    packages = sysconfig.get_path("purelib")
    monkeypatch.setattr(sys, "path", ["/py-files/a.zip", packages, "/behind/site-packages"])
    assert worker_environment(threads=1)["PYTHONPATH"].split(os.pathsep) == ["/py-files/a.zip"]
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    assert worker_environment(threads=1)["PYTHONPATH"].split(os.pathsep) == ["/a", "/b"]
