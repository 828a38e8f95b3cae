"""Reads row groups: threads, few open files, and errors that name file and column."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import SameFiles, open_file
from sparkdl_runner.data.decode.columns import Column, DenseColumn
from sparkdl_runner.data.errors import BadRowError, ChangedFileError, DatasetError

_BUFFER_BYTES = 128 << 10
_CAN_VERIFY_PAGES = "page_checksum_verification" in inspect.signature(pq.ParquetFile).parameters


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
        same: SameFiles,
        *,
        open_files: int = 8,
    ) -> None:
        self._manifest = manifest
        self._same = same
        self._filesystem = filesystem
        self._directory = directory.rstrip("/")
        self._open_files = open_files
        self._idle: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._lock = threading.Lock()
        # A remote file is read in few large requests; a local one through a small buffer.
        local = isinstance(filesystem, pa.fs.LocalFileSystem)
        self._access = {"buffer_size": _BUFFER_BYTES} if local else {"pre_buffer": True}
        # What no checksum of the whole vouches for is checked page by page as it is read.
        known = local and all(file.crc32 is not None for file in manifest.files)
        if _CAN_VERIFY_PAGES and not known:
            self._access["page_checksum_verification"] = True

    def stream(
        self, group: int, columns: Sequence[Column], *, rows: int, until: int
    ) -> Iterator[tuple[int, int, list[Any]]]:
        """Reads one row group a few rows at a time.

        Small pieces stay in the processor's cache on their way to where they are copied, and take
        the same memory over and over: three times faster than decoding a row group as a whole.

        Args:
            group: Its index in the manifest.
            columns: What to read.
            rows: Rows at a time.
            until: Rows from this one on are not needed.

        Yields:
            The first row's number within the row group, the number n of rows and, for each column,
            its decoded outputs, ``[n, *shape]`` each, or, where rows differ in length, the Arrow
            array ``[n]``.

        Raises:
            ChangedFileError: It is not the file that was converted.
            DatasetError: The file is gone, broken, or not what the manifest says; it names the
                file, the row group and, where it is known, the column.
        """
        groups = self._manifest.row_groups
        file = int(groups.file[group])
        index = int(groups.index_in_file[group])
        path = f"{self._directory}/{self._manifest.files[file].path}"
        name, done = None, 0
        try:
            parquet = self._take(file, path)
            found, expected = parquet.metadata.row_group(index).num_rows, int(groups.rows[group])
            if found != expected:
                raise DatasetError(f"it has {found:,} rows and the manifest says {expected:,}")
            places: list[int] = []
            for batch in parquet.iter_batches(
                batch_size=rows,
                row_groups=[index],
                columns=[column.name for column in columns],
                use_threads=False,
            ):
                decoded: list[Any] = []
                places = places or [batch.schema.get_field_index(c.name) for c in columns]
                for column, place in zip(columns, places, strict=True):
                    name = column.name
                    array = _plain(batch.column(place))
                    decoded.append(
                        column.decode(array)
                        if isinstance(column, DenseColumn)
                        else column.check(array)
                    )
                name = None
                yield done, batch.num_rows, decoded
                done += batch.num_rows
                if done >= until:
                    break
            if done < until:
                raise DatasetError(f"it ends after {done:,} of {until:,} rows")
            self._put_back(file, parquet)
        except ChangedFileError:
            raise  # It says all there is to say.
        except (DatasetError, pa.ArrowException, OSError, KeyError) as error:
            where = f", column {name!r}" if name else ""
            if isinstance(error, BadRowError):
                where += f", row {done + error.row:,}"
                error = DatasetError(f"it {error.problem}")
            raise DatasetError(
                f"{path}, row group {index}{where}: {error}. Convert the DataFrame again, or "
                "restore the file."
            ) from error

    def close(self) -> None:
        """Closes every idle file."""
        with self._lock:
            while self._idle:
                self._idle.popitem()[1].close()

    def _take(self, file: int, path: str) -> pq.ParquetFile:
        with self._lock:
            parquet = self._idle.pop(file, None)
        return self._open(file, path) if parquet is None else parquet

    def _open(self, file: int, path: str) -> pq.ParquetFile:
        stream, found = open_file(self._filesystem, path)
        tail = self._same.check(stream, found, path, file)
        return pq.ParquetFile(
            stream,
            metadata=None if tail is None else pq.read_metadata(pa.BufferReader(tail)),
            coerce_int96_timestamp_unit="us",
            **self._access,
        )

    def _put_back(self, file: int, parquet: pq.ParquetFile) -> None:
        with self._lock:
            if file not in self._idle:
                self._idle[file] = parquet
                if len(self._idle) <= self._open_files:
                    return
                _, parquet = self._idle.popitem(last=False)
        parquet.close()


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
