"""``make_spark_converter``: a DataFrame becomes files that every rank can read."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data import petastorm_engine
from sparkdl_runner.data.cache import (
    PARENT_CACHE_DIR_URL_CONF,
    conversions,
    parent_cache_dir_url,
    process_directory,
)
from sparkdl_runner.data.dataset import SparkDatasetConverter, deleter
from sparkdl_runner.data.describe import check_files, describe_parquet
from sparkdl_runner.data.errors import DatasetError, NoManifestError
from sparkdl_runner.data.filesystem import (
    StorageOptions,
    join_url,
    normalize_url,
    open_filesystem,
    redact,
)
from sparkdl_runner.data.leftovers import MARKER_NAME, delete_directory
from sparkdl_runner.data.locate import first_file_with_nulls, first_file_with_other_lengths
from sparkdl_runner.data.manifest import Manifest

if TYPE_CHECKING:
    from pyarrow import fs
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data.spark_writer import WriteSettings, Written

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024

CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd")
"""What Spark can write and pyarrow can read; petastorm's list has two that Parquet never had."""

_log = logging.getLogger(__name__)


class ConversionError(DatasetError):
    """Spark could not write the files; nothing of them is left to be read by mistake."""


class CodecError(ValueError, RuntimeError):
    """An unknown compression codec: a ``RuntimeError`` in petastorm, a ``ValueError`` elsewhere."""


def make_spark_converter(
    df: DataFrame | str | Any,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    allow_nulls: bool = False,
    storage_options: StorageOptions | None = None,
) -> SparkDatasetConverter:
    """Converts a DataFrame into files from which every rank reads its shard.

    The files go below ``petastorm.spark.converter.parentCacheDirUrl`` and are deleted when this
    process exits. An equal DataFrame with equal settings is converted once, and the later calls
    return the earlier files. petastorm does the converting where it can run, and otherwise Spark
    writes the same layout.

    Args:
        df: A DataFrame; or the URL of a directory of Parquet files, which is read as it is and
            where it is, so that the next three arguments do not apply; or what
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
    if isinstance(df, str):
        return _describe_directory(df, allow_nulls, storage_options)
    if _is_petastorm_converter(df):
        return _adopt(df, allow_nulls, storage_options)
    settings = _check_settings(df, parquet_row_group_size_bytes, compression_codec, dtype)
    spark = df.sparkSession
    parent_url = parent_cache_dir_url(spark)
    application_id = _application_id(spark)

    def convert() -> SparkDatasetConverter:
        return _convert(df, parent_url, application_id, settings, allow_nulls, storage_options)

    def is_still_there(converter: SparkDatasetConverter) -> bool:
        try:
            converter.open(storage_options)
        except (OSError, DatasetError):
            return False
        return True

    key = (settings, allow_nulls, parent_url, application_id)
    return conversions.get_or_convert(df, key, convert, is_still_there)


def _check_settings(
    df: Any, row_group_size_bytes: int, codec: str | None, dtype: str | None
) -> WriteSettings:
    from sparkdl_runner.data.spark_types import DTYPES, check_columns
    from sparkdl_runner.data.spark_writer import WriteSettings

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


def _application_id(spark: SparkSession) -> str:
    context = getattr(spark, "_sc", None)
    return context.applicationId if context is not None else "connect"


def _convert(
    df: DataFrame,
    parent_url: str,
    application_id: str,
    settings: WriteSettings,
    allow_nulls: bool,
    storage_options: StorageOptions | None,
) -> SparkDatasetConverter:
    from sparkdl_runner.data.spark_writer import write_parquet

    try:
        process_url = process_directory(parent_url, application_id, storage_options)
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
            written = write_parquet(df, attempt_url, application_id, settings, materialize)
        except Exception as error:
            raise ConversionError(_explain(error, attempt_url)) from error
        return _commit(written, allow_nulls, storage_options)
    except BaseException:
        _delete_quietly(attempt_url, storage_options)
        raise


_attempts = itertools.count()


def _explain(error: Exception, url: str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    told = causes[-1].removeprefix("Caused by:").strip() if causes else " ".join(lines[:1])
    return (
        f"Spark could not write the conversion to {redact(url)}: {told} Nothing was kept of it; "
        "Spark's own error follows above."
    )


def _delete_quietly(url: str, storage_options: StorageOptions | None) -> None:
    try:
        delete_directory(url, storage_options)
    except Exception as error:
        _log.warning("Cannot delete the unfinished conversion %s: %s", redact(url), error)


def _commit(
    written: Written, allow_nulls: bool, storage_options: StorageOptions | None
) -> SparkDatasetConverter:
    """Describes what was written, checks it, and writes the manifest: only now can it be read."""
    url = normalize_url(written.url)
    filesystem, directory = open_filesystem(url, storage_options)
    manifest = describe_parquet(
        filesystem,
        directory,
        list_parquet(filesystem, directory),
        null_counts=written.null_counts,
        list_lengths=written.list_lengths,
    )
    if written.rows is not None and manifest.rows != written.rows:
        raise ConversionError(
            f"Spark wrote {written.rows:,} rows to {redact(url)}, and the files there hold "
            f"{manifest.rows:,}: a failed attempt of a task left a file, or one was lost. Convert "
            "again; if it returns, look at the committer of this storage."
        )
    check_nulls(filesystem, directory, manifest, allow_nulls)
    _warn_of_ragged(filesystem, directory, manifest)
    manifest.write(filesystem, directory)
    files = [join_url(url, file.path) for file in manifest.files]
    return SparkDatasetConverter(url, files, manifest.rows, delete=deleter(url, storage_options))


def list_parquet(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """The names of the Parquet files in a directory, sorted, without hidden and partial ones."""
    from pyarrow import fs

    prefix = len(directory.rstrip("/")) + 1
    selector = fs.FileSelector(directory, recursive=True)
    names = [
        info.path[prefix:]
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    ]
    hidden = ("_", ".")
    return sorted(
        name
        for name in names
        if name.endswith((".parquet", ".parq"))
        and not any(part.startswith(hidden) for part in name.split("/"))
    )


def check_nulls(
    filesystem: fs.FileSystem, directory: str, manifest: Manifest, allow_nulls: bool
) -> None:
    """Raises a DatasetError that names column, count and file if there are nulls unasked for."""
    found = [column for column in manifest.columns if column.null_count]
    if allow_nulls or not found:
        return
    listed = ", ".join(f"{column.name!r} ({column.null_count:,})" for column in found)
    path = first_file_with_nulls(filesystem, directory, manifest, found[0].name)
    raise DatasetError(
        f"There are nulls in column {listed}, the first in {path}, and a tensor has none: drop or "
        "fill them in the DataFrame, or pass allow_nulls=True here and nulls='fill', 'nan' or "
        "'mask' to make_torch_dataloader."
    )


def _warn_of_ragged(filesystem: fs.FileSystem, directory: str, manifest: Manifest) -> None:
    for column in manifest.columns:
        if None in column.list_lengths:
            found = first_file_with_other_lengths(filesystem, directory, manifest, column.name)
            path, lengths = found or ("?", "different numbers")
            _log.warning(
                "Column %r holds lists that differ in length (first in %s: %s): loaders will need "
                "pad= or ragged= for it.",
                column.name,
                path,
                lengths,
            )


def _describe_directory(
    url: str, allow_nulls: bool, storage_options: StorageOptions | None
) -> SparkDatasetConverter:
    url = normalize_url(url)
    filesystem, directory = open_filesystem(url, storage_options)
    from pyarrow import fs

    def is_there(path: str) -> bool:
        return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)

    if not is_there(directory):
        raise NoManifestError(f"There is no directory {redact(url)}.")
    if is_there(f"{directory}/_delta_log"):
        raise DatasetError(
            f"{redact(url)} is a Delta table, whose directory also holds files of other versions: "
            "pass spark.read.format('delta').load(…) instead of its path."
        )
    embedded = None
    try:
        manifest = Manifest.read(filesystem, directory)
        check_files(filesystem, directory, manifest)
    except NoManifestError:
        # The marker of the process that converted lies two directories up.
        if is_there(f"{directory.rsplit('/', 2)[0]}/{MARKER_NAME}"):
            raise
        embedded = manifest = describe_parquet(
            filesystem, directory, list_parquet(filesystem, directory)
        )
    unischema = petastorm_engine.has_unischema(filesystem, directory)
    if not unischema:  # Only petastorm knows what its codecs make of a null.
        check_nulls(filesystem, directory, manifest, allow_nulls)
        _warn_of_ragged(filesystem, directory, manifest)
    files = [join_url(url, file.path) for file in manifest.files]
    return SparkDatasetConverter(url, files, manifest.rows, manifest=embedded, unischema=unischema)


def _is_petastorm_converter(df: Any) -> bool:
    origin = type(df).__module__.partition(".")[0] == "petastorm"
    return origin and all(hasattr(df, name) for name in ("cache_dir_url", "file_urls"))


def _adopt(
    petastorm_converter: Any, allow_nulls: bool, storage_options: StorageOptions | None
) -> SparkDatasetConverter:
    """Takes over what petastorm converted: its list of files is what counts."""
    url = normalize_url(petastorm_converter.cache_dir_url)
    filesystem, directory = open_filesystem(url, storage_options)
    names = [file_url.rstrip("/").rpartition("/")[2] for file_url in petastorm_converter.file_urls]
    manifest = describe_parquet(filesystem, directory, sorted(names))
    if manifest.rows != len(petastorm_converter):
        raise DatasetError(
            f"petastorm counted {len(petastorm_converter):,} rows in {redact(url)}, and its files "
            f"hold {manifest.rows:,}: they were changed since. Convert again."
        )
    check_nulls(filesystem, directory, manifest, allow_nulls)
    return SparkDatasetConverter(
        url,
        list(petastorm_converter.file_urls),
        manifest.rows,
        manifest=manifest,
        delete=petastorm_converter.delete,
    )
