"""Directories: the one that a user names, and the one for this application's conversions."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.databricks import on_databricks
from sparkdl_runner.base.filesystem import StorageOptions, normalize_url
from sparkdl_runner.base.private_folder import private_folder, user_name
from sparkdl_runner.data.errors import NoSharedFolderError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The name that petastorm gives to this setting of Spark.
PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

_CACHE_NAME = "sparkdl_runner-cache"


@dataclass(frozen=True, kw_only=True)
class CachePlace:
    """The cache directory of a Spark session's conversions, and who may read them."""

    url: str
    """See ``parent_cache_dir_url``."""
    application_id: str
    private: bool
    """Whether they are for this user alone. On a cluster they must not be: executors may write as
    another user, by the parent's permissions."""
    storage_options: StorageOptions | None
    """Credentials and such for this process."""

    @classmethod
    def of(cls, spark: SparkSession, storage_options: StorageOptions | None = None) -> CachePlace:
        """Asks a session.

        Raises:
            ValueError: As of ``parent_cache_dir_url``.
        """
        return cls(
            url=parent_cache_dir_url(spark),
            application_id=application_id(spark),
            private=is_one_host(spark),
            storage_options=storage_options,
        )


def parent_cache_dir_url(spark: SparkSession) -> str:
    """The parent directory of conversions.

    That is ``petastorm.spark.converter.parentCacheDirUrl``, and where it is not set: a directory
    below the system's temporary one if all of Spark runs on this machine, or below ``/tmp`` of
    Hadoop's default filesystem if that is shared.

    Raises:
        NoSharedFolderError: Neither is there.
        ValueError: The setting is not a URL.
    """
    configured = setting(spark, PARENT_CACHE_DIR_URL_CONF)
    if configured:
        try:
            return directory_url(configured, spark)
        except ValueError as error:
            raise ValueError(f"{PARENT_CACHE_DIR_URL_CONF}: {error}") from None
    if not on_databricks():
        default = _default_filesystem(spark)
        if default is not None and is_local_master(spark):
            return normalize_url(f"file://{private_folder(_CACHE_NAME)}")
        if default and not default.startswith("file:"):
            folder = f"/tmp/{_CACHE_NAME}-{user_name()}"  # noqa: S108
            return normalize_url(f"{default.rstrip('/')}{folder}")
    raise NoSharedFolderError(
        f"set the Spark setting {PARENT_CACHE_DIR_URL_CONF} to one, or name one by "
        "write_conversion(df, url)"
    )


def setting(spark: SparkSession, name: str) -> str | None:
    """One of Spark's settings; None where it is not set.

    Databricks' serverless compute has few settings, and refuses to read or set all others.
    """
    try:
        value: str | None = spark.conf.get(name, None)
    except Exception as error:
        if "CONFIG_NOT_AVAILABLE" not in str(error):
            raise
        return None
    return value


def application_id(spark: SparkSession) -> str:
    """Names the application; through Spark Connect the session, since plans are valid there."""
    context = getattr(spark, "_sc", None)
    return context.applicationId if context is not None else f"connect-{spark.session_id}"  # type: ignore[attr-defined]


def directory_url(place: str | os.PathLike[str], spark: SparkSession | None) -> str:
    """The URL of a directory; an absolute path is ``file:`` if only one host can be meant.

    On a cluster, Spark and pyarrow take a path without a scheme for different places.

    Raises:
        TypeError: It is neither.
        ValueError: It is no URL, or a path where there are several hosts, or a relative one.
    """
    place = os.fspath(place) if isinstance(place, os.PathLike) else place
    # normalize_url gives those two a meaning of their own.
    plain = isinstance(place, str) and place.startswith("/")
    if plain and not place.startswith(("/Volumes/", "/dbfs/")) and is_one_host(spark):
        place = f"file://{os.path.normpath(place)}"
    return normalize_url(place)


def is_one_host(spark: SparkSession | None) -> bool:
    """Whether all that reads and writes is on this host, with its own file system by default."""
    if on_databricks():
        return False
    if spark is None:
        return True
    default = _default_filesystem(spark)
    return default is not None and is_local_master(spark) and default.startswith("file:")


def is_local_master(spark: SparkSession) -> bool:
    """Whether executors are on the driver's host."""
    return (setting(spark, "spark.master") or "").startswith("local")


def _default_filesystem(spark: SparkSession) -> str | None:
    """Hadoop's default filesystem; None if it is unknown, as that of a server elsewhere is."""
    jsc = getattr(spark, "_jsc", None)
    if jsc is None:
        # A tunnel looks the same: refuse_apart finds out before anything is converted.
        host = str(getattr(getattr(spark, "client", None), "host", ""))
        is_here = host in ("localhost", "[::1]") or host.startswith("127.")
        return "file:" if is_here else None
    return jsc.hadoopConfiguration().get("fs.defaultFS") or "file:"


def running_session() -> SparkSession | None:
    """This process's Spark session, if it has one; starts none."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    classic: Any = sys.modules.get("pyspark.sql.session")
    session = getattr(getattr(classic, "SparkSession", None), "_instantiatedSession", None)
    if session is None and connect is not None:
        session = connect.SparkSession.getActiveSession()
    return session
