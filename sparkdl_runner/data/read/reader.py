"""Reads row groups from any thread, with few open files; errors name file and column."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.base.retrying import reason_of
from sparkdl_runner.data.dataset.files import Files
from sparkdl_runner.data.dataset.footers import footer_bytes
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.decode.columns import Column
from sparkdl_runner.data.errors import (
    BadRowError,
    ChangedFileError,
    DatasetError,
    StorageError,
)
from sparkdl_runner.data.parquet.arrow_schema import read_metadata
from sparkdl_runner.data.parquet.too_large import TOO_LARGE, has_a_limit, is_too_large
from sparkdl_runner.data.remote.disk_cache import DiskCache
from sparkdl_runner.data.remote.ranges import RemoteRowGroups
from sparkdl_runner.tensors.errors import BadColumnError, BadValueError, UnexpectedNullError

_BUFFER_BYTES = 128 << 10
_NO_SUCH_VALUE = (
    "The file is whole, and torch has no place for such a value: cast the column in the DataFrame, "
    "or leave it out with columns=[…]."
)
_RELEASE_BYTES = 4 << 20
_MEMORY_BYTES = 96 << 20
_FEW_FILES, _MANY_FILES = 8, 64
_PARSED = 4
"""A footer takes about so many times the memory that it takes in its file."""
_CAN_VERIFY_PAGES = "page_checksum_verification" in inspect.signature(pq.ParquetFile).parameters


class DecodedRows(NamedTuple):
    """Rows of a row group that were decoded together."""

    first: int
    """The number of the first of them within the row group."""
    rows: int
    columns: list[Any]
    """For each column, what its ``decode`` returned."""

    @property
    def end(self) -> int:
        """The number of the row after them."""
        return self.first + self.rows


class RowGroupReader:
    """Reads any row group of a data set, from any thread.

    Some files stay open between reads: a few, or many that have several row groups and small
    footers. One that is being read is not among them, so two threads never share a handle. Footers
    are kept longer, so that a file with many row groups is not parsed again for each of them. Those
    and remote row groups that nobody has decoded yet take up to ``memory_bytes``.

    While ``stopping`` is set, nobody waits for another process that fetches the same, nor for a
    storage that may come back: such reads fail.
    """

    def __init__(
        self,
        files: VerifiedFiles,
        *,
        cache: DiskCache | None = None,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self._files = files
        manifest = files.dataset.manifest
        self._groups, self._view, self._schema = manifest.row_groups, manifest.view, manifest.schema
        self._idle: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._idle_bytes = 0
        self._footers: OrderedDict[int, pq.FileMetaData] = OrderedDict()
        self._footers_bytes, self._most_footers_bytes = 0, memory_bytes // 6 // _PARSED
        self._lock = threading.Lock()
        self._is_local = local = files.dataset.is_local
        self._read_bytes = 0
        self.stopping = threading.Event()
        self._remote = None
        if not local:
            self._remote = RemoteRowGroups(
                files, cache=cache, memory_bytes=memory_bytes, stopping=self.stopping
            )
        self._access: dict[str, Any] = {
            "coerce_int96_timestamp_unit": "us",
            "buffer_size": _BUFFER_BYTES,
            "pre_buffer": False,  # Newer Arrow would read the whole row group before a value.
        }
        # Without a checksum of the whole file, each page is checked as it is read.
        known = local and bool((Files.of(files.dataset.manifest.files).numbers("crc32") >= 0).all())
        if _CAN_VERIFY_PAGES and not known:
            self._access["page_checksum_verification"] = True

    def allow_more(self, more_bytes: int) -> None:
        """Remote row groups may take so much memory beside ``memory_bytes``."""
        if self._remote is not None:
            self._remote.allow_more(more_bytes)

    def read_ahead(self, groups: Iterable[int], columns: Sequence[Column]) -> None:
        """Begins to fetch row groups that will be read, in this order; nothing for local files."""
        if self._remote is not None:
            self._remote.read_ahead(groups, [column.name for column in columns])

    def forget_ahead(self) -> None:
        """Those row groups will not be read."""
        if self._remote is not None:
            self._remote.forget_ahead()

    def stream(
        self, group: int, columns: Sequence[Column], *, rows: int, until: int
    ) -> Iterator[DecodedRows]:
        """Reads one row group a few rows at a time.

        Few rows stay in the processor's cache until they are copied, and reuse the same
        memory: three times faster than decoding a row group as a whole.

        Args:
            group: Its index in the manifest.
            columns: What to read.
            rows: Rows at a time.
            until: Rows from this one on are not needed.

        Raises:
            ChangedFileError: It is not the file that was converted.
            StorageError: The storage does not give it, for a reason of its own.
            DatasetError: The file is gone, broken, or not what the manifest says; it names the
                file, the row group and, where it is known, the column.
        """
        groups = self._groups
        file = int(groups.file[group])
        index = int(groups.index_in_file[group])
        name, done = None, 0
        try:
            parquet = self._take(file, group, columns)
            stored_rows, expected = (
                parquet.metadata.row_group(index).num_rows,
                int(groups.rows[group]),
            )
            if self._view is not None:
                expected = self._view.rows_in_file(group, expected)
            if stored_rows != expected:
                raise DatasetError(
                    f"it has {stored_rows:,} rows and the manifest says {expected:,}"
                )
            places: list[int] = []
            for batch in self._batches(parquet, (file, group, index), columns, rows):
                decoded: list[Any] = []
                places = places or [batch.schema.get_field_index(c.name) for c in columns]
                for column, place in zip(columns, places, strict=True):
                    name = column.name
                    array = _plain(batch.column(place))
                    if array.null_count and not column.has_nulls:
                        raise UnexpectedNullError
                    decoded.append(_decode(column, array))
                name = None
                yield DecodedRows(done, batch.num_rows, decoded)
                done += batch.num_rows
                if done >= until:
                    break
            if done < until:
                raise DatasetError(f"it ends after {done:,} of {until:,} rows")
            self._put_back(file, parquet)
            self._release_unused(int(groups.size_bytes[group]))
        except ChangedFileError:
            raise  # Its message is complete.
        except (DatasetError, BadColumnError, pa.ArrowException, OSError, KeyError) as error:
            where = f", column {name!r}" if name else ""
            reason = reason_of(error, self._files.advice)
            if reason is not None:  # The file may well be whole.
                raise StorageError(f"{self.describe(group)}, cannot be read: {reason}") from error
            if is_too_large(error):
                lists = [c.name for c in columns if has_a_limit(self._schema.field(c.name).type)]
                where = f", column {' or '.join(map(repr, lists))}" if lists else where
                raise DatasetError(f"{self.describe(group)}{where}: {TOO_LARGE}") from error
            remedy = self._files.advice
            if name and isinstance(error, pa.ArrowInvalid):
                remedy = _NO_SUCH_VALUE
            if isinstance(error, BadColumnError):
                error = DatasetError(f"{error}: the file is not as its manifest says")
            if isinstance(error, BadRowError):
                where += f", row {done + error.row:,}"
                remedy = error.remedy
                error = DatasetError(f"it {error.problem}")
            raise DatasetError(f"{self.describe(group)}{where}: {error}. {remedy}") from error

    def describe(self, group: int) -> str:
        """A row group's file, and its place in it, for a message."""
        file, index = int(self._groups.file[group]), int(self._groups.index_in_file[group])
        return f"{self._files.path(file)}, row group {index}"

    def _batches(
        self,
        parquet: pq.ParquetFile,
        place: tuple[int, int, int],
        columns: Sequence[Column],
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in columns]
        if self._view is not None:
            wanted = pa.schema([self._schema.field(name) for name in names])
            return self._view.batches(parquet, place, wanted, rows)
        batches: Iterator[pa.RecordBatch] = parquet.iter_batches(
            batch_size=rows, row_groups=[place[2]], columns=names, use_threads=False
        )
        return batches

    def close(self) -> None:
        """Closes every idle file, forgets the footers, and ends what is fetched ahead."""
        if self._remote is not None:
            self._remote.close()
        with self._lock:
            self._footers.clear()
            self._footers_bytes = 0
            while self._idle:
                self._idle.popitem()[1].close()
            self._idle_bytes = 0

    def _release_unused(self, read_bytes: int) -> None:
        """Lets go, now and then, of what Arrow's allocators keep of this thread's earlier reads."""
        self._read_bytes += read_bytes
        if self._read_bytes > _RELEASE_BYTES:
            self._read_bytes = 0
            pa.default_memory_pool().release_unused()

    def _take(self, file: int, group: int, columns: Sequence[Column]) -> pq.ParquetFile:
        if self._remote is not None:
            return self._remote.open(group, [column.name for column in columns], **self._access)
        with self._lock:
            parquet = self._idle.pop(file, None)
            if parquet is not None:
                self._idle_bytes -= parquet.metadata.serialized_size
        return self._open(file) if parquet is None else parquet

    def _open(self, file: int) -> pq.ParquetFile:
        stream, tail = self._files.open(file)
        return pq.ParquetFile(
            stream,
            metadata=self._footer(file, stream, tail),
            **self._access,
        )

    def _footer(
        self, file: int, stream: pa.NativeFile, tail: bytes | memoryview | None
    ) -> pq.FileMetaData:
        """A file's footer, parsed: the one that is kept, unless ``tail`` was just read."""
        with self._lock:
            kept = self._footers.get(file)
            if kept is not None and tail is None:
                self._footers.move_to_end(file)
                return kept
        if tail is None:
            tail = footer_bytes(stream, self._files.path(file), is_local=self._is_local)
        footer = read_metadata(tail)
        with self._lock:
            before = self._footers.pop(file, None)
            self._footers_bytes -= 0 if before is None else before.serialized_size
            self._footers[file] = footer
            self._footers_bytes += footer.serialized_size
            while self._footers_bytes > self._most_footers_bytes and len(self._footers) > 1:
                self._footers_bytes -= self._footers.popitem(last=False)[1].serialized_size
        return footer

    def _put_back(self, file: int, parquet: pq.ParquetFile) -> None:
        if self._remote is not None:
            parquet.close()  # It holds one row group, and its footer is kept elsewhere.
            return
        with self._lock:
            if file not in self._idle:
                self._idle[file] = parquet
                self._idle_bytes += parquet.metadata.serialized_size
                are_small = self._idle_bytes <= self._most_footers_bytes
                most = _MANY_FILES if are_small and parquet.num_row_groups > 1 else _FEW_FILES
                if len(self._idle) <= most:
                    return
                _, parquet = self._idle.popitem(last=False)
                self._idle_bytes -= parquet.metadata.serialized_size
        parquet.close()


def _decode(column: Column, array: pa.Array) -> Any:
    """What the column makes of rows.

    Raises:
        BadRowError: A value cannot be read; it names the first row that holds such a one.
    """
    try:
        return column.decode(array)
    except BadValueError as error:
        good, bad, bad_value = 0, len(array), error
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            column.decode(array.slice(good, middle - good))
            good = middle
        except BadValueError as error:
            bad, bad_value = middle, error
    raise BadRowError(good, bad_value.problem, bad_value.remedy) from bad_value


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
