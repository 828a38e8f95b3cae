"""``make_spark_converter``: a DataFrame becomes files that every rank can read."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.cache import converted_once
from sparkdl_runner.data.convert.existing import is_petastorm_converter, open_existing
from sparkdl_runner.data.convert.sources import Request
from sparkdl_runner.data.dataset.lake.open import Choice
from sparkdl_runner.data.dataset.place import CachePlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from sparkdl_runner.data.dataset.view.filters import Filters

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024


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
    keep_hours: None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into files from which every rank reads its shard.

    The files go below ``petastorm.spark.converter.parentCacheDirUrl`` and are deleted when this
    process exits, or when all converters that share them were deleted. petastorm does the
    converting where it can run, and otherwise Spark writes the same layout.

    An equal DataFrame with equal settings is converted once, and the later calls return the
    earlier files. DataFrames are equal if their plans, column names and types are, and their input
    files with sizes and times, as Spark listed them. A DataFrame that reads from anything else,
    such as JDBC, is converted anew by each call; through Spark Connect also one that reads a table
    or a view by its name, or has SQL in it.

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
        keep_hours: Refused. ``write_conversion`` makes a conversion that stays.

    Returns:
        What makes the loaders. It can be pickled into a training function.

    Raises:
        TypeError: A column has no place in a tensor, or ``keep_hours`` is given.
        ValueError: A setting is out of range, or there is no usable cache directory.
        ConversionError: Spark could not write the files.
        DatasetError: There are nulls, or the files in a given directory are no data set.
    """
    if keep_hours is not None:
        raise TypeError(
            "keep_hours is no more: conversions end with their session. Write one that stays, once "
            "by write_conversion(df, url), and read it by make_spark_converter(url) in any session."
        )
    choice = Choice(columns=columns, filters=filters, version=version, snapshot_id=snapshot_id)
    if isinstance(df, (str, os.PathLike)) or is_petastorm_converter(df):
        if shuffle_seed is not None:
            raise ValueError(
                "shuffle_seed is for a DataFrame, and these files are read as they are: read them "
                "by Spark first, as spark.read.parquet(…)."
            )
        return open_existing(df, allow_nulls, storage_options, choice)
    choice.refuse("a DataFrame: select, filter or read it so before")
    # Only now: what is read in place needs no Spark.
    from sparkdl_runner.data.convert.conversion import convert
    from sparkdl_runner.data.convert.plan import plan_conversion

    plan = plan_conversion(
        df, parquet_row_group_size_bytes, compression_codec, dtype, allow_nulls, shuffle_seed
    )
    place = CachePlace.of(df.sparkSession, storage_options)
    request = Request.of(df, plan.settings, place.url, place.application_id)
    return converted_once(request, partial(convert, plan, place), storage_options)
