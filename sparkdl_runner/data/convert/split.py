"""Converts a DataFrame into two data sets at once: one to train with, one to validate with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sparkdl_runner.base.filesystem import normalize_url, open_filesystem
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.converter import DEFAULT_ROW_GROUP_SIZE_BYTES
from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.dataset.describe import commit
from sparkdl_runner.data.dataset.leftovers import (
    conversion_directory,
    delete_quietly,
    deleter,
    timed_name,
)
from sparkdl_runner.data.dataset.place import CachePlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl_runner.data.convert.plan import ConversionPlan
    from sparkdl_runner.data.dataset.describe import Written


def make_split_converters(
    df: DataFrame, split: str, *, allow_nulls: bool = False
) -> tuple[SparkDatasetConverter | None, SparkDatasetConverter | None]:
    """Converts the rows of a DataFrame into two data sets, by one Spark job.

    Each row is in exactly one of them, also where the DataFrame gives other rows each time that it
    is computed.

    Args:
        df: What to convert.
        split: A boolean column without nulls, which is not converted itself.
        allow_nulls: Whether nulls are fine in the others, to be filled or masked when reading.

    Returns:
        The rows where ``split`` is false, and those where it is true; None where there are none.

    Raises:
        NullSplitError: ``split`` is null in a row.
        Exception: What ``make_spark_converter`` raises.
    """
    from sparkdl_runner.data.convert.plan import plan_conversion
    from sparkdl_runner.data.convert.write import write_split_parquet

    plan = plan_conversion(df, DEFAULT_ROW_GROUP_SIZE_BYTES, None, "float32", allow_nulls)
    place = CachePlace.of(df.sparkSession)
    directory = conversion_directory(place)
    try:
        written = write_split_parquet(plan, split, directory, timed_name(place.application_id))
        deletes = _when_all_did(deleter(directory, None), 2)
        converters = [_describe(plan, written[half], deletes[half]) for half in (False, True)]
    except BaseException:
        delete_quietly(directory, None)
        raise
    for converter in converters:
        if converter is not None:
            converter.dataframe = df
    return converters[0], converters[1]


def _describe(
    plan: ConversionPlan, written: Written, delete: Callable[[], None]
) -> SparkDatasetConverter | None:
    from sparkdl_runner.data.convert.infinities import warn_of_infinite

    filesystem, directory = open_filesystem(normalize_url(written.url), None)
    if written.rows == 0 or filesystem.get_file_info(directory).type.name == "NotFound":
        delete()
        return None
    url, dataset = commit(written, None, plan.settings.allow_nulls)
    warn_of_infinite(plan, written, dataset.manifest)
    return converter_of(url, dataset, delete=delete)


def _when_all_did(delete: Callable[[], None], holders: int) -> list[Callable[[], None]]:
    """Returns a function for each holder; ``delete`` is called once all of them were called."""
    lock, waited_for = threading.Lock(), set(range(holders))

    def let_go(number: int) -> None:
        with lock:
            waited_for.discard(number)
            is_last = not waited_for
        if is_last:
            delete()

    return [partial(let_go, number) for number in range(holders)]
