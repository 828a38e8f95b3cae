"""Starts Spark sessions for tests, one at a time."""

from __future__ import annotations

from pathlib import Path

LOG4J = Path(__file__).parents[2] / "conf" / "log4j2.properties"


def start_session(master: str, **settings: str):
    """Starts a session for tests; no other may be running."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("sparkdl_runner tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOG4J}",
        **settings,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_on(sessions: dict, master: str, **settings: str):
    """Returns the session on ``master``, stopping one on another master."""
    from pyspark import SparkContext

    if master not in sessions:
        for session in sessions.values():
            session.stop()
        sessions.clear()
        # A JVM keeps the settings of its first session for all later ones.
        if SparkContext._gateway is not None:
            SparkContext._gateway.shutdown()
            SparkContext._gateway.proc.stdin.close()
            SparkContext._gateway = SparkContext._jvm = None
        sessions[master] = start_session(master, **settings)
    return sessions[master]
