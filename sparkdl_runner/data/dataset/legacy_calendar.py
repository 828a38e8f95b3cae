"""Days and times of the Julian calendar, as Spark 2 wrote them, and Spark 3 with ``LEGACY``.

Spark says in a file's footer that it wrote so, and shifts them when it reads. Arrow does not:
days before 1582-10-15 would be wrong by 2 to 10 days in silence, and times before 1900 by minutes.
So a file that holds such values is refused. Those after are equal in both calendars.

https://github.com/apache/spark/blob/v3.5.0/sql/catalyst/src/main/scala/org/apache/spark/sql/catalyst/util/RebaseDateTime.scala
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.leaves import owners_of
from sparkdl_runner.data.parquet.scan import scan
from sparkdl_runner.tensors.arrays import is_list

_SPARK = b"org.apache.spark."
_FIRST_DAY = -141_427  # 1582-10-15
_FIRST_MICROSECOND = -2_208_988_800_000_000  # 1900-01-01
_FIRST = {
    "DATE": _FIRST_DAY,
    "TIMESTAMP_MICROS": _FIRST_MICROSECOND,
    "TIMESTAMP_MILLIS": _FIRST_MICROSECOND // 1000,
}
"""By Parquet's type, the first value that both calendars write alike."""


def refuse_legacy_calendar(
    filesystem: pa.fs.FileSystem, path: str, parquet: pq.ParquetFile
) -> None:
    """Refuses a file with days or times that mean others than they say.

    Statistics decide where there are any; otherwise the column is read.

    Args:
        filesystem: Where the file is.
        path: Its path.
        parquet: Its footer.

    Raises:
        DatasetError: A column holds such a value.
    """
    days_too, int96_too = _marks(parquet.metadata)
    if not (days_too or int96_too):
        return
    unsure = []
    for leaf, name in enumerate(owners_of(parquet)):
        column = parquet.schema.column(leaf)
        first = _FIRST.get(column.converted_type) if days_too else None
        if int96_too and column.physical_type == "INT96":
            unsure.append(name)
        elif first is not None:
            lows = list(_lows(parquet.metadata, leaf))
            if any(low is not None and low < first for low in lows):
                raise _error(path, name)
            if None in lows:
                unsure.append(name)
    if unsure:
        for batch in scan(filesystem, path, list(dict.fromkeys(unsure))):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if _holds_early(column):
                    raise _error(path, name)


def _marks(metadata: pq.FileMetaData) -> tuple[bool, bool]:
    """Whether days and times, and whether int96 times, are of the Julian calendar.

    As ``DataSourceUtils.datetimeRebaseSpec`` and ``int96RebaseSpec`` of Spark. Before 2.4 Spark
    left its schema, and no version.
    """
    known = metadata.metadata or {}
    version = known.get(_SPARK + b"version")
    if version is None:
        is_early = _SPARK + b"sql.parquet.row.metadata" in known
        return is_early, is_early
    numbers = tuple(int(part) for part in version.split(b".")[:2] if part.isdigit())
    return (
        numbers < (3, 0) or _SPARK + b"legacyDateTime" in known,
        numbers < (3, 1) or _SPARK + b"legacyINT96" in known,
    )


def _lows(metadata: pq.FileMetaData, leaf: int) -> Iterator[int | None]:
    """The lowest value of each row group; None where only its values tell."""
    for index in range(metadata.num_row_groups):
        chunk = metadata.row_group(index).column(leaf)
        statistics = chunk.statistics
        known = statistics is not None and statistics.has_null_count
        if statistics is not None and statistics.has_min_max:
            yield statistics.min_raw
        elif not (known and statistics.null_count == chunk.num_values):
            yield None


def _holds_early(array: pa.Array) -> bool:
    kind = array.type
    if is_list(kind):
        return _holds_early(pc.list_flatten(array))
    if pa.types.is_struct(kind):
        return any(_holds_early(part) for part in array.flatten())
    if pa.types.is_date(kind):
        first = pa.scalar(_FIRST_DAY, pa.int32()).cast(pa.date32())
    elif pa.types.is_timestamp(kind):
        first = pa.scalar(_FIRST_MICROSECOND, pa.timestamp("us", kind.tz))
    else:
        return False
    lowest = pc.min(array)
    return bool(lowest.is_valid and pc.less(lowest, first).as_py())


def _error(path: str, name: str) -> DatasetError:
    return DatasetError(
        f"{path}: column {name!r} holds days before 1582-10-15 or times before 1900, and Spark "
        "wrote this file in the old (Julian) calendar, as its footer says (Spark 2, or "
        "datetimeRebaseModeInWrite or int96RebaseModeInWrite LEGACY). Here they would be other "
        "days. Have Spark read it, and convert that: make_spark_converter(spark.read.parquet(…))."
    )
