"""A DataFrame becomes files of this process: written, described, committed."""

from __future__ import annotations

from sparkdl_runner.data.consumers.petastorm import engine as petastorm_engine
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.convert.infinities import warn_of_infinite
from sparkdl_runner.data.convert.plan import ConversionPlan
from sparkdl_runner.data.convert.write import write_parquet
from sparkdl_runner.data.dataset.describe import commit, warn_of_ragged
from sparkdl_runner.data.dataset.leftovers import (
    conversion_directory,
    delete_quietly,
    deleter,
    timed_name,
)
from sparkdl_runner.data.dataset.place import CachePlace


def convert(
    plan: ConversionPlan, place: CachePlace, *, warns: bool = True
) -> SparkDatasetConverter:
    """Converts a DataFrame into a directory of its own, by petastorm where that can run.

    Args:
        plan: What to write.
        place: The cache directory.
        warns: Whether to warn of lists that differ in length.

    Raises:
        ConversionError: Spark could not write the files.
        DatasetError: There are nulls.
    """
    through_connect = not hasattr(plan.df, "_jdf")
    by_petastorm = petastorm_engine.can_convert(place.url, through_connect)
    materialize = petastorm_engine.materialize if by_petastorm else None
    directory = conversion_directory(place)
    try:
        written = write_parquet(plan, directory, timed_name(place.application_id), materialize)
        url, dataset = commit(written, place.storage_options, plan.settings.allow_nulls)
        warn_of_infinite(plan, written, dataset.manifest)
        if warns:
            warn_of_ragged(dataset)
        return converter_of(url, dataset, delete=deleter(directory, place.storage_options))
    except BaseException:
        delete_quietly(directory, place.storage_options)
        raise
