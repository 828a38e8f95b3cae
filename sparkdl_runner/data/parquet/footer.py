"""Parses the footer of a Parquet file, and says why one cannot be read."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.arrow_schema import without_views
from sparkdl_runner.data.parquet.encryption import encrypted_columns
from sparkdl_runner.data.parquet.leaves import Columns

WITHOUT_KEYS = (
    "Keys are not taken here: let Spark read the files with its keys, and pass the DataFrame."
)
# Arrow's words for what the file says and this Arrow does not know. The file is whole.
_UNKNOWN = ("Unrecognized type", "not recognized", "Unsupported", "not yet implemented")


def parsed_footer(tail: bytes, path: str) -> pq.ParquetFile:
    """A file without its pages.

    Args:
        tail: The file from its footer on.
        path: For messages.

    Raises:
        DatasetError: It cannot be read.
    """
    try:
        parquet = pq.ParquetFile(
            pa.BufferReader(without_views(tail)), coerce_int96_timestamp_unit="us"
        )
        encrypted = encrypted_columns(parquet.metadata, tail)
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
        raise DatasetError(f"{path} {_why(error)}") from error
    if encrypted:
        raise DatasetError(f"{path} has encrypted columns: {', '.join(encrypted)}. {WITHOUT_KEYS}")
    return parquet


def columns_of(parquet: pq.ParquetFile, bare: pq.ParquetFile, path: str) -> Columns:
    """What follows from the schema of a file.

    Args:
        parquet: The file without its pages.
        bare: The same, ``without_arrow_schema``.
        path: For messages.

    Raises:
        DatasetError: Two columns have one name, or Arrow has no such type.
    """
    try:
        names = parquet.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DatasetError(f"{path} {_why(error)}") from error
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DatasetError(
            f"{path} has several columns called {twice[0]!r}, which nobody could tell apart. Write "
            "it again with a name for each."
        )
    return Columns.of(parquet, bare)


def _why(error: Exception) -> str:
    reason = str(error).rstrip(".") or type(error).__name__
    if any(words in reason for words in _UNKNOWN):
        return (
            f"has a column that Arrow {pa.__version__} does not know: {reason}. Leave it out with "
            "spark.read.parquet(…).drop(…), cast it there, or read it by a newer pyarrow."
        )
    return f"has a broken Parquet footer: {reason}. Write it again."
