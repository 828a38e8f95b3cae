"""A Spark session for the jobs: quiet and on this machine, unless someone has chosen another."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = Path(__file__).resolve().parents[1] / "conf" / "log4j2.properties"


def start_spark(app_name: str, *, slots: int) -> SparkSession:
    """Returns the running session, or starts one.

    Args:
        app_name: Its name, where one is started.
        slots: How many tasks run at once, where neither spark-submit nor PYSPARK_SUBMIT_ARGS
            has chosen a master.
    """
    from pyspark.sql import SparkSession

    # Spark would otherwise start whatever is called python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).config("spark.ui.showConsoleProgress", "false")
    if not {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys():
        builder = (
            builder.master(f"local[{slots}]")
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
