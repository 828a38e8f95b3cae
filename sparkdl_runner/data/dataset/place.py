"""Which directory a person means: a URL, or a plain path where all of Spark is on one host."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from sparkdl_runner.filesystem import normalize_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The name that petastorm gives to this setting of Spark.
PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"


def directory_url(place: str | os.PathLike[str], spark: SparkSession | None) -> str:
    """The URL of a directory; an absolute path is ``file:`` if only one host can be meant.

    On a cluster, Spark and pyarrow take a path without a scheme for different places.

    Args:
        place: A URL or a path.
        spark: The session, if there is one.

    Raises:
        TypeError: It is neither.
        ValueError: It is no URL, or a path where there are several hosts, or a relative one.
    """
    place = os.fspath(place) if isinstance(place, os.PathLike) else place
    # Those two have a meaning of their own.
    plain = isinstance(place, str) and place.startswith("/")
    if plain and not place.startswith(("/Volumes/", "/dbfs/")) and is_one_host(spark):
        place = f"file://{os.path.normpath(place)}"
    return normalize_url(place)


def is_one_host(spark: SparkSession | None) -> bool:
    """Whether all that reads and writes is on this host, with its own file system by default."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return False
    if spark is None:
        return True
    # Through Spark Connect, "local" is the server's word for the server's machine.
    if getattr(spark, "_jsc", None) is None:
        return False
    default = default_filesystem(spark) or "file:"
    return (spark.conf.get("spark.master", "") or "").startswith("local") and (
        default.startswith("file:")
    )


def default_filesystem(spark: SparkSession) -> str | None:
    """Hadoop's default filesystem, where this process can ask for it."""
    jsc = getattr(spark, "_jsc", None)
    if jsc is None:
        return None
    value: str | None = jsc.hadoopConfiguration().get("fs.defaultFS")
    return value


def running_session() -> SparkSession | None:
    """This process's Spark session, if it has one; starts none."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    classic: Any = sys.modules.get("pyspark.sql.session")
    session = getattr(getattr(classic, "SparkSession", None), "_instantiatedSession", None)
    if session is None and connect is not None:
        session = connect.SparkSession.getActiveSession()
    return session
