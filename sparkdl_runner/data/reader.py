"""Reads row groups: threads, few open files, and errors that name file and column."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.data.columns import Column, DenseColumn
from sparkdl_runner.data.decode import Array
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.manifest import Manifest


class RowGroupReader:
    """Reads any row group of a data set, from any thread.

    At most ``open_files`` files stay open between reads; one that is being read is not among
    them, so two threads never share a handle.
    """

    def __init__(
        self,
        manifest: Manifest,
        filesystem: pa.fs.FileSystem,
        directory: str,
        *,
        open_files: int = 8,
    ) -> None:
        self._manifest = manifest
        self._filesystem = filesystem
        self._directory = directory.rstrip("/")
        self._open_files = open_files
        self._idle: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._lock = threading.Lock()
        # A remote file is read in few large requests; a local one as it comes.
        self._pre_buffer = not isinstance(filesystem, pa.fs.LocalFileSystem)

    def read(self, group: int, columns: Sequence[Column]) -> list[tuple[Array, ...] | pa.Array]:
        """Reads one row group.

        Args:
            group: Its index in the manifest.
            columns: What to read.

        Returns:
            For each column its decoded outputs, ``[rows, *shape]`` each, or, where rows differ
            in length, the Arrow array ``[rows]``.

        Raises:
            DatasetError: The file is gone, broken, or not what the manifest says; it names the
                file, the row group and, where it is known, the column.
        """
        groups = self._manifest.row_groups
        file = int(groups.file[group])
        index = int(groups.index_in_file[group])
        path = f"{self._directory}/{self._manifest.files[file].path}"
        name = None
        try:
            parquet = self._take(file, path)
            table = parquet.read_row_group(
                index, columns=[column.name for column in columns], use_threads=False
            )
            self._put_back(file, parquet)
            if table.num_rows != groups.rows[group]:
                raise DatasetError(
                    f"it has {table.num_rows:,} rows and the manifest says "
                    f"{int(groups.rows[group]):,}"
                )
            decoded: list[tuple[Array, ...] | pa.Array] = []
            for column in columns:
                name = column.name
                array = _one_array(table.column(name))
                decoded.append(
                    column.decode(array)
                    if isinstance(column, DenseColumn)
                    else column.check(array)
                )
                name = None
        except (DatasetError, pa.ArrowException, OSError, KeyError) as error:
            where = f", column {name!r}" if name else ""
            raise DatasetError(
                f"{path}, row group {index}{where}: {error}. Convert the DataFrame again, or "
                "restore the file."
            ) from error
        return decoded

    def close(self) -> None:
        """Closes every idle file."""
        with self._lock:
            while self._idle:
                self._idle.popitem()[1].close()

    def _take(self, file: int, path: str) -> pq.ParquetFile:
        with self._lock:
            parquet = self._idle.pop(file, None)
        if parquet is None:
            parquet = pq.ParquetFile(
                self._filesystem.open_input_file(path),
                pre_buffer=self._pre_buffer,
                coerce_int96_timestamp_unit="us",
            )
            if parquet.metadata.num_rows != self._manifest.files[file].rows:
                raise DatasetError("the file was replaced after the conversion")
        return parquet

    def _put_back(self, file: int, parquet: pq.ParquetFile) -> None:
        with self._lock:
            if file not in self._idle:
                self._idle[file] = parquet
                if len(self._idle) <= self._open_files:
                    return
                _, parquet = self._idle.popitem(last=False)
        parquet.close()


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # more text or bytes than 32-bit offsets reach
        raise DatasetError(
            "more than 2 GiB in one column of one row group: convert with a smaller "
            "parquet_row_group_size_bytes"
        )
    return combined
