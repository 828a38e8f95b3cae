"""``make_spark_converter``: a DataFrame becomes files that every rank can read."""

from __future__ import annotations

import itertools
import logging
import os
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data.convert.cache import (
    Hold,
    conversions,
    parent_cache_dir_url,
    process_directory,
)
from sparkdl_runner.data.convert.commit import ConversionError, commit
from sparkdl_runner.data.convert.existing import (
    adopt_petastorm,
    describe_directory,
    is_petastorm_converter,
)
from sparkdl_runner.data.dataset.leftovers import delete_directory
from sparkdl_runner.data.dataset.place import (
    PARENT_CACHE_DIR_URL_CONF,
    directory_url,
    is_one_host,
    running_session,
)
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.petastorm import engine as petastorm_engine
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.filesystem import StorageOptions, join_url, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data.write_settings import WriteSettings

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024

CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd")
"""What Spark can write and pyarrow can read; petastorm's list has two that Parquet never had."""

_log = logging.getLogger(__name__)


class CodecError(ValueError, RuntimeError):
    """An unknown compression codec: a ``RuntimeError`` in petastorm, a ``ValueError`` elsewhere."""


def make_spark_converter(
    df: DataFrame | str | os.PathLike[str] | Any,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    allow_nulls: bool = False,
    storage_options: StorageOptions | None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into files from which every rank reads its shard.

    The files go below ``petastorm.spark.converter.parentCacheDirUrl`` and are deleted when this
    process exits, or when all converters that share them were deleted. petastorm does the
    converting where it can run, and otherwise Spark writes the same layout.

    An equal DataFrame with equal settings is converted once, and the later calls return the
    earlier files. Equal are the plan, the column names and types, and the input files with their
    sizes and times, as Spark listed them. A DataFrame that reads from anything else, such as JDBC,
    or through Spark Connect, is converted anew by each call.

    Args:
        df: A DataFrame; or the URL of a directory of Parquet files, which is read as it is and
            where it is, so that the next three arguments do not apply (an absolute path will do
            where all of Spark is on this host); or what
            ``petastorm.spark.make_spark_converter`` returned.
        parquet_row_group_size_bytes: The size of a row group in memory.
        compression_codec: ``"uncompressed"`` (the default), ``"snappy"``, ``"gzip"``, ``"lz4"``
            or ``"zstd"``.
        dtype: What floating point numbers become, also inside of arrays and vectors:
            ``"float32"``, ``"float64"``, or ``None`` to leave them as they are.
        allow_nulls: Whether nulls are fine, to be filled or masked when reading.
        storage_options: Credentials and such for this process; ranks are given their own.

    Returns:
        What makes the loaders. It can be pickled into a training function.

    Raises:
        TypeError: A column has no place in a tensor.
        ValueError: A setting is out of range, or there is no usable cache directory.
        ConversionError: Spark could not write the files.
        DatasetError: There are nulls, or the files in a given directory are no data set.
    """
    if isinstance(df, (str, os.PathLike)):
        url = directory_url(df, running_session())
        return describe_directory(url, allow_nulls, storage_options)
    if is_petastorm_converter(df):
        return adopt_petastorm(df, allow_nulls, storage_options)
    settings = check_settings(df, parquet_row_group_size_bytes, compression_codec, dtype)
    spark = df.sparkSession
    parent_url = parent_cache_dir_url(spark)
    application = application_id(spark)

    def convert() -> SparkDatasetConverter:
        return _convert(df, parent_url, application, settings, allow_nulls, storage_options)

    def is_still_there(converter: SparkDatasetConverter) -> bool:
        try:
            converter.open(storage_options)
        except (OSError, DatasetError):
            return False
        return True

    key = (settings, allow_nulls, parent_url, application)
    shared, hold = conversions.get_or_convert(df, key, convert, is_still_there)
    return _held_converter(shared, hold, df)


def _held_converter(
    shared: SparkDatasetConverter, hold: Hold, df: DataFrame
) -> SparkDatasetConverter:
    """One holder's converter: the files go when the last holder has deleted its own."""

    def delete() -> None:
        if conversions.release(hold):
            shared.delete()
        else:
            _log.info("Others use %r, so its files stay until they delete it, too.", shared)

    converter = SparkDatasetConverter(
        shared.cache_dir_url,
        list(shared.file_urls),
        shared.dataset_size,
        converted=shared._converted,
        delete=delete,
    )
    converter.dataframe = df
    return converter


def check_settings(
    df: Any, row_group_size_bytes: int, codec: str | None, dtype: str | None
) -> WriteSettings:
    """Checks the arguments of a conversion; raises what ``make_spark_converter`` documents."""
    from sparkdl_runner.data.convert.spark_types import DTYPES, check_columns
    from sparkdl_runner.data.write_settings import WriteSettings

    if not hasattr(df, "sparkSession") or not hasattr(df, "schema"):
        raise TypeError(
            "df must be a Spark DataFrame, a directory's URL or a petastorm converter, not "
            f"{type(df).__name__}."
        )
    if isinstance(row_group_size_bytes, bool) or not isinstance(row_group_size_bytes, int):
        raise TypeError(
            "parquet_row_group_size_bytes must be a whole number, not "
            f"{type(row_group_size_bytes).__name__}."
        )
    if not 1 <= row_group_size_bytes < 2**31:
        raise ValueError(
            "parquet_row_group_size_bytes must be from 1 to 2,147,483,647, not "
            f"{row_group_size_bytes:,}."
        )
    codec = (codec or "uncompressed").lower()
    if codec not in CODECS:
        raise CodecError(f"compression_codec must be None or one of {CODECS}, not {codec!r}.")
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported. Use None, 'float32' or 'float64'.")
    check_columns(df.schema)
    return WriteSettings(
        row_group_size_bytes=row_group_size_bytes, compression_codec=codec, dtype=dtype
    )


def application_id(spark: SparkSession) -> str:
    """What tells this session's plans from those of others."""
    context = getattr(spark, "_sc", None)
    # Through Spark Connect, a plan means something in its own session only.
    return context.applicationId if context is not None else f"connect-{spark.session_id}"  # type: ignore[attr-defined]


def _convert(
    df: DataFrame,
    parent_url: str,
    application: str,
    settings: WriteSettings,
    allow_nulls: bool,
    storage_options: StorageOptions | None,
) -> SparkDatasetConverter:
    from sparkdl_runner.data.convert.spark_writer import write_parquet

    try:
        # On a cluster, executors may be another user, who writes there: with the parent's rights.
        process_url = process_directory(
            parent_url, application, storage_options, private=is_one_host(df.sparkSession)
        )
    except OSError as error:
        raise ConversionError(
            f"Cannot write to the cache directory {redact(parent_url)} ({error}): make it "
            f"writable, or set {PARENT_CACHE_DIR_URL_CONF} to another place."
        ) from error
    with_petastorm = petastorm_engine.can_convert(df, parent_url)
    materialize = petastorm_engine.materialize if with_petastorm else None
    # One directory more, so that all that one attempt wrote can be deleted if it fails.
    attempt_url = join_url(process_url, f"conversion-{next(_attempts)}")
    try:
        try:
            written = write_parquet(df, attempt_url, application, settings, materialize)
        except Exception as error:
            raise ConversionError(why_not_written(error, attempt_url)) from error
        return commit(written, allow_nulls, storage_options, attempt_url)
    except BaseException:
        delete_quietly(attempt_url, storage_options)
        raise


_attempts = itertools.count()


def why_not_written(error: Exception, url: str) -> str:
    """The cause of what Spark raised, as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    told = causes[-1].removeprefix("Caused by:").strip() if causes else " ".join(lines[:1])
    return (
        f"Spark could not write the conversion to {redact(url)}: {told.rstrip('.')}. Nothing of it "
        "was kept; Spark's own error is above."
    )


def delete_quietly(url: str, storage_options: StorageOptions | None) -> None:
    """Deletes what an unfinished conversion has written, as far as that is possible."""
    try:
        delete_directory(url, storage_options)
    except Exception as error:
        _log.warning("Cannot delete the unfinished conversion %s: %s", redact(url), error)
