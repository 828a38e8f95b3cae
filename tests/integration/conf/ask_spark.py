"""Asks a JVM of Spark what it knows of settings, and lets it log. Started as a process of its own.

Reads a JSON object of settings from the standard input: values by key, None for a key alone. Prints
what is wrong with each.
"""

import json
import sys

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext

# Where Spark's parts declare what they can be told; a setting is known once its part is loaded.
DECLARING = [
    *(
        f"org.apache.spark.internal.config.{part}$"
        for part in ("package", "Deploy", "Network", "Python", "UI", "Worker")
    ),
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.deploy.yarn.config.package$",
]


def complaint(jvm, key: str, value: str | None) -> str | None:
    """What Spark has against a setting, or None."""
    entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(key)
    if entry is None:
        return "unknown"
    if value is None:
        return None
    settings = jvm.org.apache.spark.SparkConf(False)
    settings.set(key, value)
    try:
        settings.get(entry)
    except Py4JJavaError as error:
        return str(error.java_exception.getMessage())
    except ValueError:
        # Spark has taken it, as a number that py4j cannot bring here: Spark 4's fractional cores.
        return None
    return None


def main() -> None:
    asked = json.load(sys.stdin)
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))
    jvm = SparkContext._jvm
    for name in DECLARING:
        jvm.java.lang.Class.forName(name)
    complaints = {key: complaint(jvm, key, value) for key, value in asked.items()}

    loggers = jvm.org.apache.logging.log4j.LogManager
    loggers.getLogger("org.example.Named").warn("a warning")
    loggers.getLogger("org.example.Named").info("not worth a line")
    loggers.getLogger("org.apache.spark.scheduler.cluster.Backend").info("an executor came")
    loggers.getLogger("org.apache.spark.BarrierCoordinator").info("a task is there")
    failure = jvm.java.lang.IllegalStateException("it broke")
    loggers.getLogger("org.example.Named").error("a failure", failure)
    print(json.dumps(complaints))


main()
