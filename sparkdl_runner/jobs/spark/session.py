"""The Spark session of a job: on this machine, unless spark-submit or a cluster gives another."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl_runner.base.databricks import on_databricks
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.jobs.spark import class_archive, python_daemon
from sparkdl_runner.launch.driver.connect import session as connect_session
from sparkdl_runner.launch.driver.local_launcher import check_cores
from sparkdl_runner.launch.driver.spark import java
from sparkdl_runner.launch.driver.spark.context import (
    is_spark_connect,
    refuse_spark_connect,
    running_context,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Each rank imports torch first, which takes a core some seconds.
RANKS_PER_CORE = 4
# Java cannot read it where this package is in an archive: then Spark's own settings hold.
LOG4J = Path(__file__).with_name("log4j2.properties")


def start_spark(app_name: str, *, slots: int, jvm_options: str = "") -> SparkSession:
    """Returns the running session, or starts one; where SPARK_REMOTE is set, of Spark Connect.

    Args:
        app_name: Its name, where one is started that is not of Spark Connect.
        slots: How many tasks run at once, where neither spark-submit nor PYSPARK_SUBMIT_ARGS
            has chosen a master; 0 for one on each core.
        jvm_options: For the JVM, in the same case.

    Raises:
        LaunchError: Spark is not installed, does not start or does not answer; or this machine is
            too small for so many slots.
    """
    if not is_chosen() and running_context() is None:
        check_cores(
            slots,
            per_core=RANKS_PER_CORE,
            reason="on which they would run since no cluster was chosen",
            instead="run it by spark-submit --master, which says where",
        )
    if importlib.util.find_spec("pyspark") is None:
        raise LaunchError(
            "This needs Spark, and pyspark is not installed here: run pip install "
            "'sparkdl-runner[spark]'."
        )
    if is_spark_connect() or "SPARK_REMOTE" in os.environ:
        session: SparkSession = connect_session.start_session()
        return session
    import pyspark
    from pyspark.sql import SparkSession

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
        options = [jvm_options, class_archive.java_options()]
        if LOG4J.exists():
            options.append(f"-Dlog4j2.configurationFile={LOG4J.as_uri()}")
        if given := " ".join(filter(None, options)):
            builder = builder.config("spark.driver.extraJavaOptions", given)
        for name, value in python_daemon.settings().items():
            builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        refuse_spark_connect()  # Spark 4 has more ways to choose it.
        spark.sparkContext.setLogLevel("ERROR")
    except LaunchError:
        raise
    except Exception as error:
        reason, advice = java.why_not_started(str(error), spark_version=pyspark.__version__)
        raise _not_started(". ".join([reason, advice]).rstrip(". ")) from error
    if not _is_registered(spark.sparkContext):
        raise _not_started("")
    return spark


def _is_registered(context: SparkContext) -> bool:
    """Whether the application has its cluster.

    Spark makes a session also where no standalone master answers, and ends it in the background a
    moment later. Only a master gives the application an id of its own.
    """
    if on_databricks() or not (context.master or "").startswith("spark://"):
        return True
    return not context.applicationId.startswith("spark-application-")


def _not_started(cause: str) -> LaunchError:
    """Stops what is left of the session, and returns the error to raise."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    place = ""
    if context is not None:
        place = f" on {context.master}"
        # The context is already stopping, and its own message says only that.
        if not _is_registered(context):
            cause = "no master has answered"
        if not on_databricks():  # There it is the whole cluster's.
            with suppress(Exception):
                context.stop()
    return LaunchError(
        f"Spark did not start{place}: {cause}. What it wrote itself is above; sparkdl-runner "
        "doctor, given the same --master, looks at Java, the master and Spark's settings, and "
        "says what to do."
    )


@contextmanager
def spark_session(app_name: str, *, slots: int, jvm_options: str = "") -> Iterator[SparkSession]:
    """The session that ``start_spark`` returns. Stops it at the end, unless it was there before."""
    was_there = is_shared()
    spark = start_spark(app_name, slots=slots, jvm_options=jvm_options)
    try:
        yield spark
    finally:
        if not was_there:
            spark.stop()


def is_shared() -> bool:
    """Whether a session is there that others use, and that is not ours to stop."""
    return on_databricks() or running_context() is not None or is_spark_connect()


def is_chosen() -> bool:
    """Whether spark-submit, Databricks or the environment says where Spark runs."""
    chosen_by = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"}
    return on_databricks() or not chosen_by.isdisjoint(os.environ)
