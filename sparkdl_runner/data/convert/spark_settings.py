"""Settings of Spark under which conversions are written, whatever those of the session are.

What is not here does not change what readers see. ANSI mode and dictionaries were tried with
Spark 3.5, ANSI mode with Spark 4, too; the rest follows from Spark's documentation:

- ``spark.sql.parquet.compression.codec`` and ``parquet.block.size`` give way to our options.
- ``spark.sql.parquet.fieldId.write.enabled``, checksums of pages, Bloom filters, summary files,
  ``_SUCCESS``, dictionaries, version 2 of pages and other committers: readers take either.
- ``spark.sql.files.maxRecordsPerFile`` and ``spark.sql.shuffle.partitions``: how many files.
- ``spark.sql.ansi.enabled``: casts between floating point numbers never raise.
- ``spark.sql.session.timeZone`` and ``spark.sql.legacy.sizeOfNull``: nothing here asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data.dataset.manifest import WRITTEN_PAGE_BYTES, WRITTEN_PAGE_ROWS
from sparkdl_runner.data.dataset.place import setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_SESSION = {
    # LEGACY shifts days before 1582-10-15 in silence, and EXCEPTION refuses them.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Spark's default. Milliseconds would be cut off.
    "spark.sql.parquet.outputTimestampType": "INT96",
    # Lists as Hive has them, which readers take for structs.
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Settings that Spark takes from the session alone."""

OF_WRITER = {
    "parquet.page.size": str(WRITTEN_PAGE_BYTES),
    "parquet.page.size.row.check.min": str(WRITTEN_PAGE_ROWS),
    "parquet.page.size.row.check.max": "10000",
    "parquet.page.row.count.limit": "20000",
}
"""Options of one write, of Hadoop's."""

_KEYS = ("footer.key", "column.keys", "uniform.key")

_lock = threading.Lock()
_in_use: dict[tuple[Any, str], tuple[int, str | None]] = {}
"""By session and setting: how many writes need it, and what it was before."""


@contextmanager
def in_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets what differs for the time of a write, and puts it back when the last such write ends.

    Other writes of this session in that time have these settings, too: Spark takes them from
    nowhere else.
    """
    key = getattr(spark, "_jsparkSession", spark)  # Several Python objects may be of one session.
    taken = []
    try:
        for name, value in settings.items():
            # A server may not let anyone set it; the files are looked at once they are written.
            with suppress(Exception):
                _take(spark, (key, name), value)
                taken.append((key, name))
        yield
    finally:
        for setting in taken:
            _let_go(spark, setting)


def _take(spark: SparkSession, key: tuple[Any, str], value: str) -> None:
    with _lock:
        count, before = _in_use.get(key, (0, None))
        if count == 0:
            before = spark.conf.get(key[1], None)
            spark.conf.set(key[1], value)
        _in_use[key] = (count + 1, before)


def _let_go(spark: SparkSession, key: tuple[Any, str]) -> None:
    name = key[1]
    with _lock:
        count, before = _in_use.pop(key)
        if count > 1:
            _in_use[key] = (count - 1, before)
            return
        with suppress(Exception):  # The session may have ended.
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def refuse_encryption(spark: SparkSession) -> None:
    """Raises a ValueError if Spark would encrypt the files: readers of conversions have no keys."""
    names = [f"parquet.encryption.{key}" for key in _KEYS]
    given = [name for name in names if _of_hadoop(spark, name)]
    if given and _of_hadoop(spark, "parquet.crypto.factory.class"):
        raise ValueError(
            f"This Spark session encrypts Parquet files ({given[0]} is set), and the processes "
            "that read a conversion have no keys. Unset it for the session that converts, and "
            "keep the conversion on storage that is encrypted itself."
        )


def _of_hadoop(spark: Any, name: str) -> str | None:
    """A setting as Hadoop has it when Spark writes: the session's, else the application's."""
    value = setting(spark, name)
    if value is None and hasattr(spark, "_jsc"):
        value = spark._jsc.hadoopConfiguration().get(name)
    return value
