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
from sparkdl_runner.filesystem import StorageOptions, normalize_url, open_filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkdl_runner.data.spark_writer import WriteSettings


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
        overwrite: Whether an earlier conversion there is deleted first. Who still reads that gets
            an error. A folder that holds anything else is left alone.
        storage_options: Credentials and such for this process.

    Raises:
        TypeError: A column has no place in a tensor.
        ValueError: A setting is out of range, or the URL is none.
        ConversionError: There is something already, or Spark could not write the files.
        DatasetError: There are nulls.
    """
    from sparkdl_runner.data.spark_writer import write_parquet

    settings = check_settings(df, parquet_row_group_size_bytes, compression_codec, dtype)
    url = normalize_url(url)
    filesystem, folder = open_filesystem(url, storage_options)
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
    """Raises a ConversionError unless the folder is empty, or a conversion to be overwritten."""
    found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    files = [one for one in found if one.type == fs.FileType.File]
    if files and not overwrite:
        raise ConversionError(
            f"There are files in {folder} already: choose another place, or ask for them to be "
            "overwritten."
        )
    for one in files:
        if not one.base_name.startswith(("_", ".")) and not one.base_name.endswith(".parquet"):
            raise ConversionError(
                f"{folder} holds {one.base_name}, which no conversion has written, and is not "
                "overwritten: choose another place."
            )
