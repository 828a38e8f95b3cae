from __future__ import annotations

import sys

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.context import check_version, require_spark_context


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9-amzn-0", "4.0.0", "4.3.0.dev1", "10.0"])
def test_these_sparks_run_ranks(version):
    check_version(version)


@pytest.mark.parametrize("version", ["2.4.8", "3.4.4", "3.3.2-databricks"])
def test_an_older_spark_is_refused_in_one_sentence(version):
    with pytest.raises(LaunchError, match=rf"This is Spark {version}, and ranks need Spark 3\.5"):
        check_version(version)


def test_without_pyspark_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(LaunchError, match=r"pip install 'sparkdl-runner\[spark\]'"):
        require_spark_context()
