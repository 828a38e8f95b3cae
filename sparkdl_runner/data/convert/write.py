"""One Spark job that writes a DataFrame as Parquet and counts while it writes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, Observation
from pyspark.sql import functions as F

from sparkdl_runner.base.filesystem import join_url, redact
from sparkdl_runner.base.time_limits import answer_within
from sparkdl_runner.data.convert.measures import POSITION, measures, read_measures
from sparkdl_runner.data.convert.plan import ConversionPlan, quoted
from sparkdl_runner.data.convert.shared_folder import refuse_apart
from sparkdl_runner.data.convert.spark_settings import OF_SESSION, OF_WRITER, in_session
from sparkdl_runner.data.dataset.describe import Written
from sparkdl_runner.data.errors import ConversionError, NullSplitError

OBSERVATION_TIMEOUT_SECONDS = 60.0

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
        ConversionError: Spark could not write, or its executors do not share the folder.
    """
    refuse_apart(plan.df.sparkSession, parent_url)
    observation = Observation(f"sparkdl_runner-{uuid.uuid4()}")
    observed = (
        plan.df.withColumn(POSITION, F.monotonically_increasing_id())
        .observe(observation, *measures(plan.df.schema))
        .drop(POSITION)
    )
    size_bytes, codec = plan.settings.row_group_size_bytes, plan.settings.compression_codec
    spark = plan.df.sparkSession
    try:
        if materialize is not None:
            with in_session(spark, OF_SESSION | OF_WRITER):
                url = materialize(observed, parent_url, size_bytes, codec)
        else:
            url = join_url(parent_url, name)
            with in_session(spark, OF_SESSION):
                _writer(observed, plan).parquet(url)
    except Exception as error:
        raise ConversionError(_why_not_written(error, parent_url)) from error
    seen = _wait_for(observation)
    written = read_measures(url, plan.df.schema, seen)
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
        ConversionError: Spark could not write, or its executors do not share the folder.
    """
    refuse_apart(plan.df.sparkSession, parent_url)
    observation = Observation(f"sparkdl_runner-{uuid.uuid4()}")
    values = plan.df.drop(split)
    counts = [
        measure
        for half in (False, True)
        for measure in measures(values.schema, (split, half), _prefix(half))
    ]
    undecided = F.count(F.when(F.col(quoted(split)).isNull(), 1)).alias("undecided")
    observed = (
        plan.df.withColumn(POSITION, F.monotonically_increasing_id())
        .observe(observation, undecided, *counts)
        .drop(POSITION)
    )
    url = join_url(parent_url, name)
    try:
        with in_session(plan.df.sparkSession, OF_SESSION):
            _writer(observed, plan).partitionBy(split).parquet(url)
    except Exception as error:
        raise ConversionError(_why_not_written(error, parent_url)) from error
    seen = _wait_for(observation)
    if seen["undecided"]:
        raise NullSplitError(f"{split} is null in {seen['undecided']:,} rows.")
    halves = {}
    for half in (False, True):
        mine = {
            key.removeprefix(_prefix(half)): value
            for key, value in seen.items()
            if key.startswith(_prefix(half))
        }
        folder = join_url(url, f"{split}={str(half).lower()}")
        halves[half] = read_measures(folder, values.schema, mine)
    return halves


def _writer(df: DataFrame, plan: ConversionPlan) -> DataFrameWriter:
    writer = df.write.options(**OF_WRITER).option("compression", plan.settings.compression_codec)
    return writer.option("parquet.block.size", plan.settings.row_group_size_bytes)


def _prefix(half: bool) -> str:
    return f"{str(half).lower()}-"


def _why_not_written(error: Exception, url: str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    cause = causes[-1].removeprefix("Caused by:").strip() if causes else " ".join(lines[:1])
    return (
        f"Spark could not write the conversion to {redact(url)}: {cause.rstrip('.')}. Nothing of "
        "it was kept; Spark's own error is above."
    )


def _wait_for(observation: Observation) -> dict[str, Any]:
    """Returns what was observed, or nothing if it does not arrive.

    Spark delivers it through its listener bus, which drops events when it is overloaded;
    ``Observation.get`` would then wait for ever. What is missing is read from the files instead.
    """
    # Spark Connect of 3.5 has none, and raises.
    observed = answer_within(OBSERVATION_TIMEOUT_SECONDS, lambda: observation.get)
    if observed is None:
        _log.warning(
            "Spark did not report what it counted while writing; reading the files instead."
        )
        return {}
    return observed
