"""``make_spark_converter``: a DataFrame becomes files that every rank can read."""

from __future__ import annotations

import copy
import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data.convert.cache import conversions, delete_if_last
from sparkdl_runner.data.convert.described import converter_of, deleter
from sparkdl_runner.data.convert.existing import is_petastorm_converter, open_existing
from sparkdl_runner.data.convert.keeping import check_keep_hours, find_or_make
from sparkdl_runner.data.convert.sources import Request
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import describe_written
from sparkdl_runner.data.dataset.leftovers import delete_quietly, process_directory, timed_name
from sparkdl_runner.data.dataset.place import (
    PARENT_CACHE_DIR_URL_CONF,
    application_id,
    is_one_host,
    parent_cache_dir_url,
)
from sparkdl_runner.data.errors import ConversionError, DatasetError
from sparkdl_runner.data.lake.open import Choice
from sparkdl_runner.data.petastorm import engine as petastorm_engine
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.filesystem import (
    StorageOptions,
    join_url,
    normalize_url,
    open_filesystem,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from sparkdl_runner.data.view.filters import Filters

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024

_attempts = itertools.count()


def make_spark_converter(
    df: DataFrame | str | os.PathLike[str] | Any,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    allow_nulls: bool = False,
    storage_options: StorageOptions | None = None,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    version: int | None = None,
    snapshot_id: int | None = None,
    shuffle_seed: int | None = None,
    keep_hours: float | None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into files from which every rank reads its shard.

    The files go below ``petastorm.spark.converter.parentCacheDirUrl`` and are deleted when this
    process exits, or when all converters that share them were deleted. petastorm does the
    converting where it can run, and otherwise Spark writes the same layout.

    An equal DataFrame with equal settings is converted once, and the later calls return the
    earlier files. DataFrames are equal if their plans, column names and types are, and their input
    files with sizes and times, as Spark listed them. A DataFrame that reads from anything else,
    such as JDBC, or through Spark Connect, is converted anew by each call.

    Args:
        df: A DataFrame; or the URL of a table of Delta or Iceberg or of a directory of Parquet
            files, which is read as it is and where it is, so that the next three arguments do not
            apply (an absolute path will do where all of Spark is on this host); or what
            ``petastorm.spark.make_spark_converter`` returned.
        parquet_row_group_size_bytes: The size of a row group in memory.
        compression_codec: ``"uncompressed"`` (the default), ``"snappy"``, ``"gzip"``, ``"lz4"``
            or ``"zstd"``.
        dtype: What floating point numbers become, also inside of arrays and vectors:
            ``"float32"``, ``"float64"``, or ``None`` to leave them as they are.
        allow_nulls: Whether nulls are fine, to be filled or masked when reading.
        storage_options: Credentials and such for this process; ranks are given their own.
        columns: Of files that are read in place, the columns to keep; all by default.
        filters: Of files that are read in place, the rows to keep. All filters of a list must
            hold, ``[("day", ">=", "2024-01-01"), ("label", "in", [1, 2])]``; of a list of such
            lists, one must. Exactly those rows are kept. Row groups are skipped by their
            statistics; if these do not decide, this call reads the columns that are named.
        version: Of a Delta table, the version to read; the newest by default.
        snapshot_id: Of an Iceberg table, the snapshot to read; the current one by default.
        shuffle_seed: Of a DataFrame, makes Spark write its rows in random order, by one shuffle.
            Batches are then mixed as after a full shuffle, even if the DataFrame is sorted. Equal
            seeds give equal orders, if the rows come in the same partitions and in the same order.
        keep_hours: Of a DataFrame, how long the conversion stays for other sessions after its last
            use, 1 or more. An equal DataFrame with equal settings finds it, in any process that
            has the same cache directory. ``delete()`` then gives up this process's use alone.

    Returns:
        What makes the loaders. It can be pickled into a training function.

    Raises:
        TypeError: A column has no place in a tensor.
        ValueError: A setting is out of range, or there is no usable cache directory.
        ConversionError: Spark could not write the files.
        DatasetError: There are nulls, or the files in a given directory are no data set.
    """
    choice = Choice(columns=columns, filters=filters, version=version, snapshot_id=snapshot_id)
    if isinstance(df, (str, os.PathLike)) or is_petastorm_converter(df):
        if shuffle_seed is not None:
            raise ValueError(
                "shuffle_seed is for a DataFrame, and these files are read as they are: read them "
                "by Spark first, as spark.read.parquet(…)."
            )
        if keep_hours is not None:
            raise TypeError("keep_hours is for a DataFrame, and these files are read in place.")
        return open_existing(df, allow_nulls, storage_options, choice)
    check_keep_hours(keep_hours)
    choice.refuse("a DataFrame: select, filter or read it so before")
    from sparkdl_runner.data.convert.plan import plan_conversion
    from sparkdl_runner.data.convert.write import write_parquet

    plan = plan_conversion(
        df, parquet_row_group_size_bytes, compression_codec, dtype, allow_nulls, shuffle_seed
    )
    parent_url = parent_cache_dir_url(df.sparkSession)
    application = application_id(df.sparkSession)
    private = is_one_host(df.sparkSession)

    def convert_into(
        url: str, name: str, materialize: Callable[..., str] | None = None
    ) -> tuple[str, Dataset]:
        written = write_parquet(plan, url, name, materialize)
        url = normalize_url(written.url)
        filesystem, directory = open_filesystem(url, storage_options)
        dataset = describe_written(written, filesystem, directory, "", allow_nulls)
        dataset.manifest.write(filesystem, directory)  # The commit: now it can be read.
        return url, dataset

    def convert() -> SparkDatasetConverter:
        if keep_hours is not None:  # Not by petastorm, which would delete the files at exit.
            return find_or_make(
                df.sparkSession,
                parent_url,
                storage_options,
                request,
                plan.settings,
                keep_hours,
                convert_into,
            )
        through_connect = not hasattr(df, "_jdf")
        by_petastorm = petastorm_engine.can_convert(parent_url, through_connect)
        materialize = petastorm_engine.materialize if by_petastorm else None
        attempt_url = new_attempt_url(parent_url, application, storage_options, private=private)
        try:
            url, dataset = convert_into(attempt_url, timed_name(application), materialize)
            return converter_of(url, dataset, delete=deleter(attempt_url, storage_options))
        except BaseException:
            delete_quietly(attempt_url, storage_options)
            raise

    request = Request.of(df, plan.settings, parent_url, application, keep_hours)
    hold = conversions.get_or_convert(request, convert, lambda it: _is_there(it, storage_options))
    converter = copy.copy(hold.result)
    converter._file_urls = list(converter.file_urls)
    converter.dataframe, converter._delete = df, partial(delete_if_last, hold)
    return converter


def _is_there(converter: SparkDatasetConverter, storage_options: StorageOptions | None) -> bool:
    try:
        converter.open(storage_options)
    except (OSError, DatasetError):
        return False
    return True


def new_attempt_url(
    parent_url: str,
    application: str,
    storage_options: StorageOptions | None = None,
    *,
    private: bool,
) -> str:
    """The URL of a directory for all that one conversion writes, to be deleted with it.

    Args:
        parent_url: See ``parent_cache_dir_url``.
        application: See ``application_id``.
        storage_options: Credentials and such for this process.
        private: Whether it is for this user alone. On a cluster it must not be: executors may
            write as another user, by the parent's permissions.

    Raises:
        ConversionError: Nothing can be written there.
    """
    try:
        own_url = process_directory(parent_url, application, storage_options, private=private)
    except OSError as error:
        raise ConversionError(
            f"Cannot write to the cache directory {redact(parent_url)} ({error}): make it "
            f"writable, or set {PARENT_CACHE_DIR_URL_CONF} to another place."
        ) from error
    return join_url(own_url, f"conversion-{next(_attempts)}")
