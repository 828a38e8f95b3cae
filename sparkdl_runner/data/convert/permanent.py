"""``write_conversion``: a DataFrame becomes files that stay where they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, normalize_url, open_filesystem, redact
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.converter import DEFAULT_ROW_GROUP_SIZE_BYTES
from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.convert.replacing import SUBFOLDER_PREFIX, replace
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import describe_written, warn_of_ragged
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest
from sparkdl_runner.data.dataset.place import application_id, directory_url
from sparkdl_runner.data.errors import ConversionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    shuffle_seed: int | None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into a folder that stays, for trainings of other processes.

    ``make_spark_converter(url)`` reads it there. The settings that are not named here mean what
    they mean to :func:`~sparkdl_runner.data.make_spark_converter`.

    The files go into a sub folder of their own, are checked, and are read from when the folder's
    ``_manifest.json`` lists them, which is the last thing to be written. So with ``overwrite``, an
    earlier conversion is whole and read until then, and deleted after; both need room together.
    If this fails, or its process is killed, the folder holds one of the two conversions:

    - on local and mounted file systems, and on HDFS by hdfs-native, the manifest is replaced by a
      rename, and on S3 and Google Cloud Storage by a put: readers see it whole or not at all;
    - on Azure, on HDFS by Hadoop's own library, and where a mount knows no rename, it is written in
      place. A kill in that moment leaves the files of both conversions and perhaps a manifest that
      is cut short. Readers refuse it, and the next call with ``overwrite`` says so and writes a new
      one.

    What a killed process wrote is passed over by readers. The next call with ``overwrite`` deletes
    it if that process ran on the same machine, and otherwise names it in a warning, since it
    might be running.

    A training that has opened the earlier conversion goes on reading it until its files are
    deleted, and then ends with an error that names one of them. A converter that was made before,
    and is opened after, says that the conversion was overwritten: ranks never read two of them.
    Of two calls that overwrite one folder at the same time, the last to end stays.

    Args:
        df: The rows.
        url: The folder's URL, or its path where all of Spark is on this host; it is made.
        parquet_row_group_size_bytes: The size of a row group in memory.
        compression_codec: How the files are compressed.
        dtype: What floating point numbers become.
        allow_nulls: Whether nulls are fine.
        overwrite: Whether an earlier conversion there is replaced, once the new one is whole and
            checked. A folder that holds anything else is left alone.
        storage_options: Credentials and such for this process.
        shuffle_seed: Makes Spark write the rows in random order.

    Raises:
        TypeError: A column has no place in a tensor.
        ValueError: A setting is out of range, or the URL is none.
        OccupiedError: There is something already that is not to be overwritten.
        ConversionError: The files could not be written. An earlier conversion is as it was.
        DatasetError: There are nulls.
    """
    from sparkdl_runner.data.convert.infinities import warn_of_infinite
    from sparkdl_runner.data.convert.plan import plan_conversion
    from sparkdl_runner.data.convert.write import write_parquet

    plan = plan_conversion(
        df, parquet_row_group_size_bytes, compression_codec, dtype, allow_nulls, shuffle_seed
    )
    url = directory_url(url, df.sparkSession)
    filesystem, folder = open_filesystem(url, storage_options)
    check_apart(df, url)
    check_replaceable(filesystem, folder, overwrite)

    def write(subfolder: str) -> Manifest:
        written = write_parquet(plan, url, subfolder.rstrip("/"))
        dataset = describe_written(written, filesystem, folder, subfolder, allow_nulls)
        warn_of_infinite(plan, written, dataset.manifest)
        warn_of_ragged(dataset)
        return dataset.manifest

    manifest = replace(filesystem, folder, application_id(df.sparkSession), write)
    return converter_of(url, Dataset(manifest, filesystem, folder))


def check_replaceable(filesystem: fs.FileSystem, folder: str, overwrite: bool) -> None:
    """Raises an OccupiedError unless the folder is empty, or a conversion to be overwritten."""
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    prefix = len(folder.rstrip("/")) + 1
    entries = filesystem.get_file_info(selector)
    names = [entry.path[prefix:] for entry in entries if entry.type == fs.FileType.File]
    if not names:
        return
    if not overwrite:
        raise OccupiedError(
            f"There are files in {folder} already: choose another place, or overwrite "
            "them (overwrite=True; in a job, --mode overwrite)."
        )
    if all("/" in name and name.startswith(SUBFOLDER_PREFIX) for name in names):
        return  # A first conversion was killed and left these.
    if filesystem.get_file_info(f"{folder}/{MANIFEST_NAME}").type != fs.FileType.File:
        raise OccupiedError(
            f"{folder} holds files and is no conversion (it has no {MANIFEST_NAME}), so it is not "
            "overwritten: choose another place, or delete it yourself."
        )


def check_apart(df: DataFrame, url: str) -> None:
    """Raises an OccupiedError if the rows are read from where they are to be written to."""
    try:
        files = [normalize_url(unquote(file)) for file in df.inputFiles()]
    except Exception:
        return  # The rows come from no files.
    for file in files:
        if file.startswith(f"{url}/"):
            raise OccupiedError(
                f"The rows are read from {redact(url)}, which they were to be written to: choose "
                "another place."
            )
