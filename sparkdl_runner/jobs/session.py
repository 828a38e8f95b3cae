"""The Spark session of a job: quiet and on this machine, unless someone has chosen another."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.spark_context import is_stopped, refuse_spark_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In the project's folder; where only the package is installed, Spark's own settings hold.
LOG4J = Path(__file__).resolve().parents[2] / "conf" / "log4j2.properties"


def start_spark(app_name: str, *, slots: int) -> SparkSession:
    """Returns the running session, or starts one.

    Args:
        app_name: Its name, where one is started.
        slots: How many tasks run at once, where neither spark-submit nor PYSPARK_SUBMIT_ARGS
            has chosen a master; 0 for one on each core.

    Raises:
        LaunchError: Spark is reached by Spark Connect, or not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise LaunchError(
            "This needs Spark, and pyspark is not installed here: run pip install "
            "'sparkdl-runner[spark]'."
        )
    from pyspark.sql import SparkSession

    refuse_spark_connect()
    # Spark would otherwise start whatever is called python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).config("spark.ui.showConsoleProgress", "false")
    if not is_chosen():
        builder = (
            builder.master(f"local[{slots or '*'}]")
            .config("spark.ui.enabled", "false")
            # The loopback interface is there also without a network.
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
        if LOG4J.exists():
            quiet = f"-Dlog4j2.configurationFile={LOG4J.as_uri()}"
            builder = builder.config("spark.driver.extraJavaOptions", quiet)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def spark_session(app_name: str, *, slots: int) -> Iterator[SparkSession]:
    """The same for as long as the context lasts; one that was there before stays."""
    # Not the active session, of which each thread has its own.
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active = None if context is None else context._active_spark_context
    was_there = is_databricks() or (active is not None and not is_stopped(active))
    spark = start_spark(app_name, slots=slots)
    try:
        yield spark
    finally:
        if not was_there:
            spark.stop()


def is_databricks() -> bool:
    """Whether this runs on a cluster of Databricks, where the session is not ours to stop."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def is_chosen() -> bool:
    """Whether spark-submit, Databricks or the environment says where Spark runs."""
    chosen_by = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"}
    return is_databricks() or not chosen_by.isdisjoint(os.environ)
