"""From a training's sources to the converters that its function is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.spark import storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.jobs.spark.source import Source


def is_read_in_place(source: Source, spark: SparkSession | None) -> bool:
    """Whether ranks read the source's own files: a folder of Parquet files, and no Delta table."""
    path = source.path or ""
    if not source.is_plain or storage.is_file(path, spark):
        return False
    if spark is None:
        return True
    if storage.exists(spark, f"{path}/_delta_log"):
        return False
    # A Spark Connect server may see what this host does not.
    return not storage.looks_itself(spark) or storage.exists(spark, path)


def open_source(source: Source, spark: SparkSession | None) -> DataFrame | SparkDatasetConverter:
    """Opens a source: a converter of files that are read in place, else a DataFrame to convert.

    Raises:
        ConfigError: It is not there, or cannot be read.
    """
    from sparkdl_runner.data import DatasetError, make_spark_converter

    if not is_read_in_place(source, spark):
        if spark is None:
            raise ConfigError(f"{source.place} needs Spark to be read.")
        return source.read(spark)
    try:
        return make_spark_converter(storage.qualified(source.path or "", spark))
    except (DatasetError, OSError, ImportError, ValueError) as error:
        raise ConfigError(str(error)) from None


def use_cache(spark: SparkSession, cache_url: str) -> None:
    """Says where data is converted to, if a conversion can be written there.

    Raises:
        ConfigError: It cannot.
    """
    from sparkdl_runner.data import SparkDatasetConverter

    storage.check_writable(spark, cache_url)
    place = storage.qualified(cache_url, spark)
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, place)


def converted(found: Any, spark: SparkSession | None) -> Any:
    """The converter of what was opened; a DataFrame is converted."""
    from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter

    if isinstance(found, SparkDatasetConverter) or spark is None:
        return found
    return make_spark_converter(found)


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Tells what is wrong with the data, or does not fit it, as a refusal of the settings.

    Raises:
        ConfigError: That is so; it names the key, and not Spark's setting behind it.
    """
    from sparkdl_runner.data import DatasetError
    from sparkdl_runner.data.errors import NoSharedFolderError

    try:
        yield
    except NoSharedFolderError:
        raise ConfigError(str(NoSharedFolderError("give cache_url"))) from None
    except (ValueError, TypeError, DatasetError) as error:
        raise ConfigError(f"{where}: {first_line(error)}") from None
