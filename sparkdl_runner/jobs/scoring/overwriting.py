"""Overwrites a folder so that its earlier files stay until all new ones are written.

Spark would delete it before it writes. Here the new files are written into a sub folder with an
underscore, which readers pass over; then the earlier ones are deleted and the new ones moved up,
``_SUCCESS`` last. What ends the process before that leaves the earlier files as they were.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.jobs.spark.storage import open_path
from sparkdl_runner.launch.driver.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BESIDE_PREFIX = "_new-"
_MARKER = "_SUCCESS"


def overwrite(spark: SparkSession, folder: str, write: Callable[[str], None]) -> None:
    """Writes files beside those of a folder, and then puts them in their place.

    Args:
        spark: The session, which knows the storage.
        folder: Made if need be.
        write: Writes files into the folder of this path, and raises if that fails; then the
            folder holds what it held.

    Raises:
        RunnerError: They are whole, and could not be put in place.
    """
    beside = f"{folder.rstrip('/')}/{BESIDE_PREFIX}{uuid.uuid4().hex}"
    try:
        write(beside)
    except Exception:
        with suppress(Exception):  # It must not hide why nothing was written.
            filesystem, there = open_path(spark, beside)
            filesystem.delete(there, True)
        raise
    try:
        # In a thread, where Ctrl-C and SIGTERM cannot interrupt it half-way.
        with ThreadPoolExecutor(1, "sparkdl-overwrite") as thread:
            thread.submit(_put_in_place, spark, folder, beside).result()
    except Exception as error:
        raise RunnerError(
            f"The new files were written to {redact(beside)}, and could not all be put in place of "
            f"what {redact(folder)} held: {java.cause(error)}. Move those that are left there, or "
            "begin again."
        ) from error


def _put_in_place(spark: SparkSession, folder: str, beside: str) -> None:
    filesystem, there = open_path(spark, folder)
    _, new = open_path(spark, beside)
    # The marker says that all files are there: it is deleted first and moved last.
    for path in sorted(_held(filesystem, there), key=lambda path: path.getName() != _MARKER):
        if path.getName() != new.getName() and not filesystem.delete(path, True):
            raise OSError(f"{path.getName()} cannot be deleted")
    for path in sorted(_held(filesystem, new), key=lambda path: path.getName() == _MARKER):
        _, target = open_path(spark, f"{folder.rstrip('/')}/{path.getName()}")
        if not filesystem.rename(path, target):
            raise OSError(f"{path.getName()} cannot be moved")
    filesystem.delete(new, True)


def _held(filesystem: Any, folder: Any) -> list[Any]:
    return [status.getPath() for status in filesystem.listStatus(folder)]
