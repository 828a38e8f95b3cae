"""One Spark job that writes a DataFrame as Parquet and counts while it writes."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data.convert.spark_types import (
    extreme_length,
    is_image,
    list_depth,
    null_inside,
    prepare,
    quoted,
)
from sparkdl_runner.data.write_settings import WriteSettings
from sparkdl_runner.filesystem import join_url

OBSERVATION_TIMEOUT_SECONDS = 60.0

_POSITION = "__sparkdl_runner_position"
"""Partition and place in it of each row, while it is written."""

_WITHOUT_STATISTICS = (t.StringType, t.BinaryType, t.TimestampType)
"""Of which Parquet's footers may say nothing: where values are long, and of int96 timestamps."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What one job wrote, and what it saw on the way.

    Attributes:
        url: The directory of the Parquet files.
        rows: As counted by the job, or ``None`` if Spark lost the counts.
        content_digest: 16 hex digits that follow from all values and their order, likewise.
        null_counts: By column; columns that are not there are to be looked up in the footers.
        list_lengths: By column, from the outside in; ``None`` where lengths differ.
    """

    url: str
    rows: int | None
    content_digest: str | None
    null_counts: dict[str, int]
    list_lengths: dict[str, tuple[int | None, ...]]


def write_parquet(
    df: DataFrame,
    parent_url: str,
    application_id: str,
    settings: WriteSettings,
    materialize: Callable[[DataFrame, str, WriteSettings], str] | None = None,
) -> Written:
    """Writes the DataFrame into a new directory, in one Spark job.

    Args:
        df: What passed :func:`~sparkdl_runner.data.convert.spark_types.check_columns`.
        parent_url: Where to make the directory.
        application_id: Goes into the directory's name.
        settings: How to write.
        materialize: Writes ``df`` below ``parent_url`` and returns where, in place of Spark's own
            writer: petastorm's converter where it is installed.
    """
    prepared = prepare(df, settings.dtype)
    observation = Observation(f"sparkdl_runner-{uuid.uuid4()}")
    observed = (
        prepared.withColumn(_POSITION, F.monotonically_increasing_id())
        .observe(observation, *_measures(prepared.schema))
        .drop(_POSITION)
    )
    if materialize is None:
        name = f"{time.strftime('%Y%m%d%H%M%S')}-appid-{application_id}-{uuid.uuid4()}"
        url = join_url(parent_url, name)
        observed.write.option("compression", settings.compression_codec).option(
            "parquet.block.size", settings.row_group_size_bytes
        ).parquet(url)
    else:
        url = materialize(observed, parent_url, settings)
    return _read_measures(url, prepared.schema, _wait_for(observation))


def _measures(schema: t.StructType) -> list[Column]:
    """Aggregates over all rows, named so that :func:`_read_measures` finds them again.

    Nulls of most plain columns are left out: the Parquet footers of the same job count them.
    """
    measures = [F.count(F.lit(1)).alias("rows"), _digest(schema).alias("digest")]
    for index, field in enumerate(schema.fields):
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, t.ArrayType):
            inside = null_inside(column, field.dataType)
            is_null = column.isNull() if inside is None else column.isNull() | inside
            measures.append(_count_where(is_null).alias(f"nulls-{index}"))
            for depth in range(list_depth(field.dataType)):
                low = F.min(extreme_length(column, depth, F.array_min))
                high = F.max(extreme_length(column, depth, F.array_max))
                measures.append(low.alias(f"low-{index}-{depth}"))
                measures.append(high.alias(f"high-{index}-{depth}"))
        elif is_image(field.dataType):
            measures.append(_count_where(column.isNull()).alias(f"nulls-{index}"))
            for depth, part in enumerate(("height", "width", "nChannels")):
                measures.append(F.min(column[part]).alias(f"low-{index}-{depth}"))
                measures.append(F.max(column[part]).alias(f"high-{index}-{depth}"))
        elif isinstance(field.dataType, _WITHOUT_STATISTICS):
            measures.append(_count_where(column.isNull()).alias(f"nulls-{index}"))
    return measures


def _digest(schema: t.StructType) -> Column:
    """A checksum of all rows: each row's hash knows its position, and so the sum their order.

    The hash passes over nulls, so that the number of the column stands before each value.
    """
    parts = [_POSITION]
    for index, name in enumerate(schema.names):
        parts += [str(index), quoted(name)]
    return F.expr(f"bit_xor(xxhash64({', '.join(parts)}))")


def _count_where(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def _read_measures(url: str, schema: t.StructType, seen: dict[str, Any]) -> Written:
    null_counts: dict[str, int] = {}
    list_lengths: dict[str, tuple[int | None, ...]] = {}
    for index, field in enumerate(schema.fields):
        if f"nulls-{index}" not in seen:
            continue
        null_counts[field.name] = seen[f"nulls-{index}"]
        if isinstance(field.dataType, _WITHOUT_STATISTICS):
            continue
        depths = 3 if is_image(field.dataType) else list_depth(field.dataType)
        pairs = [(seen[f"low-{index}-{d}"], seen[f"high-{index}-{d}"]) for d in range(depths)]
        # No list at all at some depth has no lengths: 0, as for an empty data set.
        list_lengths[field.name] = tuple((low or 0) if low == high else None for low, high in pairs)
    digest = f"{(seen['digest'] or 0) & (1 << 64) - 1:016x}" if "digest" in seen else None
    return Written(
        url=url,
        rows=seen.get("rows"),
        content_digest=digest,
        null_counts=null_counts,
        list_lengths=list_lengths,
    )


def _wait_for(observation: Observation) -> dict[str, Any]:
    """Returns what was observed, or nothing if it does not arrive.

    Spark delivers it through its listener bus, which drops events when it is overloaded;
    ``Observation.get`` would then wait for ever. What is missing is read from the files instead.
    """
    arrived: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: arrived.append(observation.get), name="sparkdl-observation", daemon=True
    )
    waiter.start()
    waiter.join(OBSERVATION_TIMEOUT_SECONDS)
    if not arrived:
        _log.warning(
            "Spark did not report what it counted while writing; reading the files instead."
        )
        return {}
    return arrived[0]
