"""The running Spark application, or why there is none that could run ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError

if TYPE_CHECKING:
    from pyspark import SparkContext


OLDEST_SPARK = (3, 5)


def require_spark_context() -> SparkContext:
    """Returns the running application's SparkContext.

    Raises:
        LaunchError: There is none, or it is reached by Spark Connect only.
    """
    try:
        from pyspark import SparkContext
    except ImportError:
        raise LaunchError(
            "A positive number of ranks runs on Spark, and pyspark is not installed here: run "
            "pip install 'sparkdl-runner[spark]', or use a negative number to run on this host "
            "alone, without Spark."
        ) from None
    refuse_spark_connect()
    context = SparkContext._active_spark_context
    if context is None or is_stopped(context):
        raise LaunchError(
            "There is no Spark session: create one with SparkSession.builder.getOrCreate() before "
            "run(), or use a negative number to run on this host alone, without Spark."
        )
    check_version(context.version)
    return context


def refuse_spark_connect() -> None:
    """Refuses a session without a SparkContext, in which no rank could run.

    Raises:
        LaunchError: Spark is reached by Spark Connect.
    """
    if _is_spark_connect():
        raise LaunchError(
            "This session reaches Spark through Spark Connect, which offers no barrier tasks with "
            "a channel to the driver: run on a cluster with a classic session (on Databricks: "
            "dedicated access mode, not serverless or standard), or use a negative number to run "
            "on this host alone."
        )


def check_version(version: str) -> None:
    """Refuses a Spark that lacks what ranks need, such as tags to cancel one job by.

    Raises:
        LaunchError: It is older than 3.5.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < OLDEST_SPARK:
        raise LaunchError(
            f"This is Spark {version}, and ranks need Spark {OLDEST_SPARK[0]}.{OLDEST_SPARK[1]} or "
            "later (on Databricks: runtime 15.4 LTS or later). Use a newer cluster, or a negative "
            "number to run on this host alone."
        )


def is_stopped(context: SparkContext) -> bool:
    """Whether the application has ended: its session was stopped, or its JVM died."""
    return bool(end_of(context))


def end_of(context: SparkContext) -> str:
    """Words on how the application has ended; empty while it has not."""
    if context._jsc is None:
        return "its session was stopped"
    try:
        return "its session was stopped" if context._jsc.sc().isStopped() else ""
    except Exception:  # Nobody answers.
        return (
            "its JVM died, as the driver's does of a result larger than spark.driver.memory holds"
        )


def _is_spark_connect() -> bool:
    try:
        from pyspark.sql.utils import is_remote
    except ImportError:
        return False
    return bool(is_remote())


def is_single_host(context: SparkContext) -> bool:
    """Whether all tasks run in the driver's own process."""
    return re.fullmatch(r"local(\[.*\])?", context.master or "") is not None
