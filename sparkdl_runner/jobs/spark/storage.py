"""Checks by Spark's filesystems whether a place exists and can be written.

Where Spark is reached by Spark Connect, its filesystems are on another host: then this host looks.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkdl_runner.base.filesystem import local_path, normalize_url, open_filesystem, redact
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.launch.driver.spark import java
from sparkdl_runner.launch.driver.spark.context import is_spark_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNWRITABLE = "Make it writable, or choose another place."


def looks_itself(spark: SparkSession | None) -> bool:
    """Whether this host looks, since there is no Spark's JVM in this process."""
    return spark is None or is_spark_connect()


def open_path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's ``FileSystem`` and ``Path`` of a place.

    Raises:
        ConfigError: It is of no kind that Spark knows, or only a Spark Connect server knows it.
    """
    if looks_itself(spark):
        raise ConfigError(
            f"files in {redact(path)} would be put in place by Spark's own JVM, and a session of "
            "Spark Connect has none here: name a table, or a folder that does not exist."
        )
    with _refused(f"Spark cannot reach {redact(path)}"):
        there = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        return there.getFileSystem(spark._jsc.hadoopConfiguration()), there


def qualified(path: str, spark: SparkSession | None) -> str:
    """The URL of a path: one without a scheme is on Spark's default filesystem, else on this host.

    Raises:
        ConfigError: It is no usable URL.
    """
    if not urlsplit(path).scheme and not path.startswith(("/Volumes/", "/dbfs/")):
        if looks_itself(spark):
            path = f"file://{Path(path).resolve()}"
        else:
            assert spark is not None  # noqa: S101 - it looks
            filesystem, there = open_path(spark, path)
            path = str(filesystem.makeQualified(there).toString())
    try:
        return normalize_url(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def exists(spark: SparkSession, path: str) -> bool:
    """Whether something is there, as far as this driver may see.

    Raises:
        ConfigError: The storage does not answer, or is of no kind that Spark knows.
    """
    if looks_itself(spark):
        with _refused(f"cannot look at {redact(path)}"):
            arrow, place = open_filesystem(qualified(path, spark))
            return bool(arrow.get_file_info(place).type)  # NotFound is 0.
    filesystem, there = open_path(spark, path)
    with _refused(f"cannot look at {redact(path)}"):
        return bool(filesystem.exists(there))


def is_file(path: str, spark: SparkSession | None) -> bool:
    """Whether one file is there, and no folder.

    Raises:
        ConfigError: It is no usable URL, or Spark cannot look.
    """
    if looks_itself(spark):
        url = qualified(path, spark)
        try:
            arrow, place = open_filesystem(url)
            return bool(arrow.get_file_info(place).is_file)
        except (OSError, ImportError, ValueError):
            return False  # What goes on to read it says why it cannot.
    assert spark is not None  # noqa: S101 - it looks
    if not exists(spark, path):
        return False
    filesystem, there = open_path(spark, path)
    return bool(filesystem.getFileStatus(there).isFile())


def held_by(spark: SparkSession, path: str) -> dict[str, bool]:
    """The content of a folder: each name, and whether it is a folder itself.

    Of a file it is its own name, and nothing where nothing is.

    Raises:
        ConfigError: The storage does not answer, or is of no kind that Spark knows.
    """
    if not exists(spark, path):
        return {}
    if looks_itself(spark):
        from pyarrow.fs import FileSelector, FileType

        with _refused(f"cannot look into {redact(path)}"):
            arrow, place = open_filesystem(qualified(path, spark))
            if is_file(path, spark):
                return {place.rpartition("/")[2]: False}
            found = arrow.get_file_info(FileSelector(place))
            return {info.base_name: info.type == FileType.Directory for info in found}
    filesystem, there = open_path(spark, path)
    with _refused(f"cannot look into {redact(path)}"):
        statuses = filesystem.listStatus(there)
        return {str(status.getPath().getName()): bool(status.isDirectory()) for status in statuses}


def delete_if_empty(filesystem: Any, folder: Any) -> None:
    """Deletes a folder of Hadoop's that holds nothing, if it is there."""
    if filesystem.exists(folder) and len(filesystem.listStatus(folder)) == 0:
        filesystem.delete(folder, False)


def check_reachable(url: str) -> None:
    """Checks that this process can reach a place without Spark.

    Raises:
        ConfigError: It cannot.
    """
    with _refused(f"cannot reach {redact(url)}"):
        open_filesystem(url)


def check_writable(spark: SparkSession, path: str) -> None:
    """Writes a small file into the folder, which is made if need be, and deletes both again.

    Raises:
        ConfigError: That fails.
    """
    if looks_itself(spark):
        check_ranks_may_write(qualified(path, spark))
        return
    filesystem, folder = open_path(spark, path)
    _, probe = open_path(spark, _probe(path))
    with _refused(f"cannot write to {redact(path)}", _UNWRITABLE):
        missing = _missing(filesystem, folder)
        filesystem.create(probe).close()
        filesystem.delete(probe, False)
        for made in missing:  # Another job may have put something there meanwhile.
            delete_if_empty(filesystem, made)


def check_ranks_may_write(url: str) -> None:
    """Does the same from this host by pyarrow, as ranks will.

    Folders that it made stay on other storage than this host's own and mounts: there, pyarrow
    cannot delete a folder only if it is empty, and another job may have put something into it.

    Raises:
        ConfigError: That fails.
    """
    made = _missing_here(url)
    try:
        with _refused(f"cannot write to {redact(url)}", _UNWRITABLE):
            filesystem, folder = open_filesystem(url)
            probe = _probe(folder)
            try:
                _touch(filesystem, folder, probe)
            except FileNotFoundError:  # Another job that was here first has removed its folder.
                _touch(filesystem, folder, probe)
            filesystem.delete_file(probe)
    finally:
        for made_folder in made:
            with suppress(OSError):  # It was not made, or another job has put something there.
                made_folder.rmdir()


def _probe(folder: str) -> str:
    return f"{folder.rstrip('/')}/.sparkdl-writable-{uuid.uuid4().hex}"


def _touch(filesystem: Any, folder: str, probe: str) -> None:
    filesystem.create_dir(folder, recursive=True)
    filesystem.open_output_stream(probe).close()


def _missing_here(url: str) -> list[Path]:
    """The folder and those above it that this host lacks, the lowest first."""
    path = local_path(url)
    if path is None:
        return []
    folder = Path(path)
    return [place for place in (folder, *folder.parents) if not os.path.exists(place)]


def _missing(filesystem: Any, folder: Any) -> list[Any]:
    """The folder and those above it that are not there yet, the lowest first."""
    missing = []
    while folder is not None and not filesystem.exists(folder):
        missing.append(folder)
        folder = folder.getParent()
    return missing


@contextmanager
def _refused(what: str, advice: str = "") -> Iterator[None]:
    """Raises ConfigError for whatever is raised: what could not be done, why, and what to do."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{what}: {java.cause(error)}. {advice}".rstrip()) from None
