"""The running Spark application, or why there is none that could run ranks."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.wire import network

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
        raise no_spark_connect("This session reaches Spark through Spark Connect")


def no_spark_connect(found: str) -> LaunchError:
    """The error where ``found`` says that Spark is reached through Spark Connect, and why."""
    return LaunchError(
        f"{found}, which offers no barrier tasks with a channel to the driver: run on a cluster "
        "with a classic session (on Databricks: dedicated access mode, not serverless or "
        "standard), or use a negative number to run on this host alone."
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
    """How the application has ended, to follow a colon; empty while it runs."""
    if context._jsc is None:
        return "its session was stopped"
    try:
        return "its session was stopped" if context._jsc.sc().isStopped() else ""
    except Exception:  # The JVM does not answer.
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


def listen_on_driver(context: SparkContext) -> tuple[socket.socket, str]:
    """Opens the log channel's socket. Returns it, and the name that executors are told.

    It is bound to the one address by which executors reach the driver, also where Spark itself
    listens on all interfaces. Under address translation the driver has no such address; then it
    is bound to the one that spark.driver.bindAddress names.

    Raises:
        LaunchError: That is no address of this host.
    """
    if is_single_host(context):
        return network.listen(network.LOOPBACK), network.LOOPBACK
    configuration = context.getConf()
    host = (configuration.get("spark.driver.host") or network.LOOPBACK).strip("[]")
    bound = (configuration.get("spark.driver.bindAddress") or host).strip("[]")
    try:
        if bound in ("0.0.0.0", "::") and network.interface_of(network.resolve(host)):  # noqa: S104
            bound = host
        return network.listen(network.resolve(bound)), host
    except OSError as error:
        raise LaunchError(
            f"The driver cannot listen on {bound} ({error}), which spark.driver.bindAddress or "
            "spark.driver.host names: set it to an address of this host that executors can reach."
        ) from error
