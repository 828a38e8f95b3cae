"""``write_conversion``: a DataFrame becomes files that stay where they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow import fs

from sparkdl_runner.data.commit import ConversionError, commit
from sparkdl_runner.data.converter import (
    DEFAULT_ROW_GROUP_SIZE_BYTES,
    application_id,
    check_settings,
    delete_quietly,
    why_not_written,
)
from sparkdl_runner.data.dataset import SparkDatasetConverter
from sparkdl_runner.data.leftovers import delete_directory
from sparkdl_runner.data.manifest import MANIFEST_NAME
from sparkdl_runner.filesystem import StorageOptions, normalize_url, open_filesystem, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl_runner.data.spark_writer import WriteSettings


class OccupiedError(ConversionError):
    """There is something where a conversion was to be written; nothing was changed."""


def write_conversion(
    df: DataFrame,
    url: str,
    *,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    allow_nulls: bool = False,
    overwrite: bool = False,
    storage_options: StorageOptions | None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into a folder that stays, for trainings of other processes.

    ``make_spark_converter(url)`` reads it there. The settings that are not named here mean what
    they mean to :func:`~sparkdl_runner.data.make_spark_converter`.

    Args:
        df: The rows.
        url: The folder's URL; it is made.
        parquet_row_group_size_bytes: The size of a row group in memory.
        compression_codec: How the files are compressed.
        dtype: What floating point numbers become.
        allow_nulls: Whether nulls are fine.
        overwrite: Whether an earlier conversion there is deleted first, before the new one is
            known to succeed. Who still reads it gets an error. A folder that holds anything else is
            left alone.
        storage_options: Credentials and such for this process.

    Raises:
        TypeError: A column has no place in a tensor.
        ValueError: A setting is out of range, or the URL is none.
        OccupiedError: There is something already that is not to be overwritten.
        ConversionError: Spark could not write the files.
        DatasetError: There are nulls.
    """
    from sparkdl_runner.data.spark_writer import write_parquet

    settings = check_settings(df, parquet_row_group_size_bytes, compression_codec, dtype)
    url = normalize_url(url)
    filesystem, folder = open_filesystem(url, storage_options)
    check_apart(df, url)
    if filesystem.get_file_info(folder).type != fs.FileType.NotFound:
        check_replaceable(filesystem, folder, overwrite)
        delete_directory(url, storage_options)

    def write_there(df: DataFrame, parent_url: str, settings: WriteSettings) -> str:
        df.write.option("compression", settings.compression_codec).option(
            "parquet.block.size", settings.row_group_size_bytes
        ).parquet(url)
        return url

    try:
        try:
            written = write_parquet(df, url, application_id(df.sparkSession), settings, write_there)
        except Exception as error:
            raise ConversionError(why_not_written(error, url)) from error
        return commit(written, allow_nulls, storage_options, None)
    except BaseException:
        delete_quietly(url, storage_options)
        raise


def check_replaceable(filesystem: fs.FileSystem, folder: str, overwrite: bool) -> None:
    """Raises an OccupiedError unless the folder is empty, or a conversion to be overwritten."""
    found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    if not any(one.type == fs.FileType.File for one in found):
        return
    if not overwrite:
        raise OccupiedError(
            f"There are files in {folder} already: choose another place, or ask for them to be "
            "overwritten."
        )
    if filesystem.get_file_info(f"{folder}/{MANIFEST_NAME}").type != fs.FileType.File:
        raise OccupiedError(
            f"{folder} holds files and is no conversion (it has no {MANIFEST_NAME}), so it is not "
            "overwritten: choose another place, or delete it yourself."
        )


def check_apart(df: DataFrame, url: str) -> None:
    """Raises an OccupiedError if the rows are read from where they are to be written to."""
    try:
        files = [normalize_url(file) for file in df.inputFiles()]
    except Exception:
        return  # What comes from no files, or through Spark Connect.
    for file in files:
        if file.startswith(f"{url}/"):
            raise OccupiedError(
                f"The rows are read from {redact(url)}, which they were to be written to: choose "
                "another place."
            )
