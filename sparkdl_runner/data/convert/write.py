"""One Spark job that writes a DataFrame as Parquet and counts while it writes."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data.convert.plan import ConversionPlan, is_image, quoted
from sparkdl_runner.data.dataset.describe import Written
from sparkdl_runner.data.errors import ConversionError, NullSplitError
from sparkdl_runner.filesystem import join_url, redact

OBSERVATION_TIMEOUT_SECONDS = 60.0

_POSITION = "__sparkdl_runner_position"
"""The column that holds each row's partition and position while rows are written."""

_WITHOUT_STATISTICS = (t.StringType, t.BinaryType, t.TimestampType)
"""Types whose nulls the footers may not count: long values, and int96 timestamps."""

_log = logging.getLogger(__name__)


def write_parquet(
    plan: ConversionPlan,
    parent_url: str,
    name: str,
    materialize: Callable[[DataFrame, str, int, str], str] | None = None,
) -> Written:
    """Writes the plan's DataFrame into a new directory, in one Spark job.

    Args:
        plan: What to write, and how.
        parent_url: Where to make the directory.
        name: What to call it.
        materialize: petastorm's converter, to write in place of Spark's own writer. It chooses a
            name of its own, and returns the directory's URL.

    Raises:
        ConversionError: Spark could not write.
    """
    observation = Observation(f"sparkdl_runner-{uuid.uuid4()}")
    observed = (
        plan.df.withColumn(_POSITION, F.monotonically_increasing_id())
        .observe(observation, *_measures(plan.df.schema))
        .drop(_POSITION)
    )
    size_bytes, codec = plan.settings.row_group_size_bytes, plan.settings.compression_codec
    try:
        if materialize is not None:
            url = materialize(observed, parent_url, size_bytes, codec)
        else:
            url = join_url(parent_url, name)
            writer = observed.write.option("compression", codec)
            writer.option("parquet.block.size", size_bytes).parquet(url)
    except Exception as error:
        raise ConversionError(_why_not_written(error, parent_url)) from error
    written = _read_measures(url, plan.df.columns, _wait_for(observation))
    return replace(written, shuffle_seed=plan.settings.shuffle_seed)


def write_split_parquet(
    plan: ConversionPlan, split: str, parent_url: str, name: str
) -> dict[bool, Written]:
    """Writes the plan's DataFrame into two directories, in one Spark job.

    One job, so that each row is in exactly one of them, also where the DataFrame has other rows
    each time that it is computed.

    Args:
        plan: What to write, and how.
        split: The boolean column by which rows are told apart; it is not written.
        parent_url: Where to make the directory of both.
        name: What to call it.

    Returns:
        What was written of the rows where ``split`` is false and true. Without such rows there is
        no directory.

    Raises:
        NullSplitError: ``split`` is null in a row.
        ConversionError: Spark could not write.
    """
    observation = Observation(f"sparkdl_runner-{uuid.uuid4()}")
    values = plan.df.drop(split)
    measures = [
        measure
        for one in (False, True)
        for measure in _measures(values.schema, only=(split, one), prefix=_prefix(one))
    ]
    undecided = F.count(F.when(F.col(quoted(split)).isNull(), 1)).alias("undecided")
    observed = (
        plan.df.withColumn(_POSITION, F.monotonically_increasing_id())
        .observe(observation, undecided, *measures)
        .drop(_POSITION)
    )
    url = join_url(parent_url, name)
    try:
        writer = observed.write.option("compression", plan.settings.compression_codec)
        writer = writer.option("parquet.block.size", plan.settings.row_group_size_bytes)
        writer.partitionBy(split).parquet(url)
    except Exception as error:
        raise ConversionError(_why_not_written(error, parent_url)) from error
    seen = _wait_for(observation)
    if seen["undecided"]:
        raise NullSplitError(f"{split} is null in {seen['undecided']:,} rows.")
    found = {}
    for one in (False, True):
        mine = {
            key.removeprefix(_prefix(one)): value
            for key, value in seen.items()
            if key.startswith(_prefix(one))
        }
        folder = join_url(url, f"{split}={str(one).lower()}")
        found[one] = _read_measures(folder, values.columns, mine)
    return found


def _prefix(one: bool) -> str:
    return f"{str(one).lower()}-"


def _why_not_written(error: Exception, url: str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    cause = causes[-1].removeprefix("Caused by:").strip() if causes else " ".join(lines[:1])
    return (
        f"Spark could not write the conversion to {redact(url)}: {cause.rstrip('.')}. Nothing of "
        "it was kept; Spark's own error is above."
    )


def _measures(
    schema: t.StructType, only: tuple[str, bool] | None = None, prefix: str = ""
) -> list[Column]:
    """Aggregates over all rows, named so that :func:`_read_measures` finds them again.

    Nulls of most plain columns are left out: the Parquet footers of the same job count them.

    Args:
        schema: Of what is measured.
        only: A column and its value in the rows that count; by default all do.
        prefix: What the names begin with.
    """

    def counted(value: Column) -> Column:
        return value if only is None else F.when(F.col(quoted(only[0])) == only[1], value)

    measures = [
        F.count(counted(F.lit(1))).alias(f"{prefix}rows"),
        F.bit_xor(counted(_row_digest(schema))).alias(f"{prefix}digest"),
    ]
    for index, field in enumerate(schema.fields):
        column = F.col(quoted(field.name))
        is_null = column.isNull()
        lengths: list[tuple[Column, Column]] = []
        if isinstance(field.dataType, t.ArrayType):
            inside = _null_inside(column, field.dataType)
            is_null = is_null if inside is None else is_null | inside
            lengths = _lengths(column, field.dataType)
        elif is_image(field.dataType):
            lengths = [(column[part],) * 2 for part in ("height", "width", "nChannels")]
        elif not isinstance(field.dataType, _WITHOUT_STATISTICS):
            continue
        nulls = F.count(counted(F.when(is_null, 1)))
        measures.append(nulls.alias(f"{prefix}nulls-{index}"))
        for depth, (shortest, longest) in enumerate(lengths):
            measures.append(F.min(counted(shortest)).alias(f"{prefix}low-{index}-{depth}"))
            measures.append(F.max(counted(longest)).alias(f"{prefix}high-{index}-{depth}"))
    return measures


def _row_digest(schema: t.StructType) -> Column:
    """A checksum of a row. It includes the row's position, so that order counts.

    The hash skips nulls, so the column's number stands before each value.
    """
    parts = [_POSITION]
    for index, name in enumerate(schema.names):
        parts += [str(index), quoted(name)]
    return F.expr(f"xxhash64({', '.join(parts)})")


def _lengths(column: Column, array: t.ArrayType) -> list[tuple[Column, Column]]:
    """The shortest and the longest list in one row, for each depth."""
    lengths = []
    depth, inner = 0, array.elementType
    while True:
        low = _extreme_length(column, depth, F.array_min)
        lengths.append((low, _extreme_length(column, depth, F.array_max)))
        if not isinstance(inner, t.ArrayType):
            return lengths
        depth, inner = depth + 1, inner.elementType


def _extreme_length(column: Column, depth: int, pick: Any) -> Column:
    """Applies ``pick`` to the lengths of the lists ``depth`` levels down in one row."""
    if depth == 0:
        return F.when(column.isNotNull(), F.size(column))
    inner_lengths = F.transform(column, lambda inner: _extreme_length(inner, depth - 1, pick))
    picked: Column = pick(inner_lengths)
    return picked


def _null_inside(column: Column, array: t.ArrayType) -> Column | None:
    """Whether an array that is not null itself holds a null, or ``None`` if its type rules it out.

    ``array_contains`` of an absent value is null exactly if the array holds a null. Spark compiles
    it, but interprets ``exists``, which takes half as long as writing the array does. So ``exists``
    runs only for the rare array that holds the value by chance.
    """
    element = array.elementType
    if isinstance(element, t.ArrayType):
        if not _may_hold_null(array):
            return None

        def holds_null(inner: Column) -> Column:
            deeper = _null_inside(inner, element)
            return inner.isNull() if deeper is None else inner.isNull() | deeper

        return F.exists(column, holds_null)
    if not array.containsNull:
        return None
    rare = _rare_value(element)
    if rare is None:
        return F.exists(column, F.isnull)
    found = F.array_contains(column, F.lit(rare).cast(element))
    return F.when(found.isNull(), True).when(found, F.exists(column, F.isnull)).otherwise(False)


def _may_hold_null(array: t.ArrayType) -> bool:
    element = array.elementType
    inside = isinstance(element, t.ArrayType) and _may_hold_null(element)
    return array.containsNull or inside


def _rare_value(data_type: t.DataType) -> Any:
    if isinstance(data_type, t.FractionalType) and not isinstance(data_type, t.DecimalType):
        return 1.2345e-39
    if isinstance(data_type, t.StringType):
        return "\x00\x01\x02"
    bits = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
    for integral, size in bits.items():
        if isinstance(data_type, integral):
            return -(2 ** (size - 1)) + 1
    return None


def _read_measures(url: str, names: list[str], seen: dict[str, Any]) -> Written:
    null_counts: dict[str, int] = {}
    list_lengths: dict[str, tuple[int | None, ...]] = {}
    for index, name in enumerate(names):
        if f"nulls-{index}" in seen:
            null_counts[name] = seen[f"nulls-{index}"]
        lengths: list[int | None] = []
        while (low_name := f"low-{index}-{len(lengths)}") in seen:
            low, high = seen[low_name], seen[f"high-{index}-{len(lengths)}"]
            # Without any list at this depth there is no length: 0, as for an empty data set.
            lengths.append((low or 0) if low == high else None)
        if lengths:
            list_lengths[name] = tuple(lengths)
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
