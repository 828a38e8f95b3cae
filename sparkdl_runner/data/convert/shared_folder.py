"""A folder of the driver's own disk is refused before anything is converted into it."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from sparkdl_runner.base.filesystem import is_far, join_url, local_path
from sparkdl_runner.data.dataset.place import is_local_master
from sparkdl_runner.data.errors import ConversionError


def refuse_apart(spark: SparkSession, folder_url: str) -> None:
    """Lets an executor read what the driver writes into the folder, which is made if need be.

    Nothing is tried where all hosts see the same: on remote storage and its mounts, and with a
    local master. A Spark Connect server's local master, and its mounts, are those of its own host.

    Raises:
        ConversionError: It is not there for the executor.
    """
    folder = local_path(folder_url)
    if folder is None:
        return
    if hasattr(spark, "_jsc") and (is_far(folder) or is_local_master(spark)):
        return
    name = f"shared-{uuid.uuid4()}"
    path = os.path.join(folder, name)
    try:
        os.makedirs(folder, exist_ok=True)
        # Executors may run as another user.
        with open(path, "x", encoding="ascii") as file:
            file.write("one line\n")
    except OSError:
        return  # Spark says what is wrong with it.
    try:
        reader = spark.read.option("ignoreMissingFiles", "true")
        lines = reader.text(join_url(folder_url, name)).count()
    except Exception as error:
        if "[PATH_NOT_FOUND]" not in str(error):
            return  # What is wrong is said by the conversion.
        lines = 0  # A server does not see it either.
    finally:
        with suppress(OSError):
            os.remove(path)
    if not lines:
        raise ConversionError(
            f"{folder_url} is another folder on each host: an executor does not find there what "
            "this process has written. Name storage that all of them reach (object storage, HDFS, "
            "a shared mount): --cache-url of a job, or the Spark setting "
            "petastorm.spark.converter.parentCacheDirUrl."
        )


def refuse_unseen(spark: SparkSession, converters: Iterable[Any]) -> None:
    """Refuses data sets in folders of this host that executors do not see.

    Args:
        spark: A session of Spark Connect, whose executors are on other hosts.
        converters: The data sets that ranks are to read there.

    Raises:
        ConversionError: One of them is seen here alone.
    """
    for converter in converters:
        folder = local_path(converter.cache_dir_url)
        files = [] if folder is None else converter.open()[0].files
        if folder is None or not files:
            continue
        # Spark would take these characters of a name for patterns.
        path = re.sub(r"([\\\[\]{}*?])", r"\\\1", os.path.join(folder, files[0].path))
        try:
            spark.read.format("binaryFile").load(f"file://{path}").schema  # noqa: B018
        except Exception as error:
            if "[PATH_NOT_FOUND]" in str(error):
                raise ConversionError(
                    f"{converter.cache_dir_url} is a folder of this host, and the Spark Connect "
                    "server does not see it, so ranks could not read it there: put it on storage "
                    "that both reach (object storage, HDFS, a shared mount), or train on this host "
                    "with a negative num_proc."
                ) from None
