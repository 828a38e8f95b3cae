"""Reads row groups of remote files: in few large requests, ahead of the threads that decode them.

A row group's columns lie beside one another in their file, so one request gets them all, and a
second one the file's footer, once. What is read can be kept in a cache on the local disk. Requests
that fail for a while are repeated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.dataset.footers import footer_of
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.byte_ranges import column_ranges, cut
from sparkdl_runner.data.read.cache_choice import local_folder
from sparkdl_runner.data.read.disk_cache import DiskCache
from sparkdl_runner.data.read.fetched_group import FetchedGroup
from sparkdl_runner.data.read.partial_file import on_disk
from sparkdl_runner.data.read.read_ahead import THREADS, ReadAhead
from sparkdl_runner.data.read.stored_footers import StoredFooters
from sparkdl_runner.data.retrying import patiently

_WHOLE_BYTES = 64 << 20
_SLICE_BYTES = 16 << 20
"""The least that one request asks for of a row group that is larger than what may be in memory."""
_LEAST_BYTES = 256 << 10
_CHUNK_BYTES = 1 << 10
"""Bytes of one column chunk in a footer in memory."""

_Answer = TypeVar("_Answer")
_Key = tuple[int, tuple[str, ...]]
"""A row group's number in the manifest, and names of columns."""
_OpenParquet = Callable[..., pq.ParquetFile]


@dataclass(kw_only=True)
class _RemoteFile:
    metadata: pq.FileMetaData
    stream: pa.NativeFile | None
    """None where the footer did not come from the file, until something else is read."""

    @property
    def chunks(self) -> int:
        return int(self.metadata.num_columns * self.metadata.num_row_groups)


class RemoteRowGroups:
    """The row groups of a data set's remote files.

    Args:
        files: The files, each of which is verified when it is first opened.
        cache: Where to keep what was read, if anywhere.
        memory_bytes: What may be in memory: half of it row groups that nobody has asked for yet,
            a third those that are being read, the rest footers. ``allow`` gives more.
        stopping: Set to end the waiting of reads under way, which then fail.
    """

    def __init__(
        self,
        files: VerifiedFiles,
        *,
        cache: DiskCache | None = None,
        memory_bytes: int,
        stopping: threading.Event,
    ) -> None:
        self._files = files
        self._groups, self._view = files.dataset.manifest.row_groups, files.dataset.manifest.view
        self._cache = cache
        self._opened: OrderedDict[int, _RemoteFile] = OrderedDict()
        self._chunks, self._most_chunks = 0, memory_bytes // 12 // _CHUNK_BYTES
        self._stored_footers = StoredFooters(files, self._kept_footers, memory_bytes // 12)
        # Lanes of this rank may share row groups, and read their parts side by side.
        self._fetched: WeakValueDictionary[_Key, FetchedGroup] = WeakValueDictionary()
        self._lock = threading.RLock()  # Collecting garbage may let go at any place.
        self._opening = [threading.Lock() for _ in range(2 * THREADS)]
        self._stopping = stopping
        self._memory_bytes = memory_bytes
        self._ahead = ReadAhead(self._fetch, self._size_of, memory_bytes // 2)
        self._held_bytes, self._most_held_bytes = 0, memory_bytes // 3

    def allow(self, spare_bytes: int) -> None:
        """Row groups may take so much more memory, a third of it before anybody asks for them.

        With a cache they are read from there, and memory is of no use.
        """
        if self._cache is not None:
            return
        self._ahead.limit_bytes = self._memory_bytes // 2 + spare_bytes // 3
        self._most_held_bytes = self._memory_bytes // 3 + 2 * spare_bytes // 3

    def read_ahead(self, groups: Iterable[int], names: Sequence[str]) -> None:
        """Begins to read row groups that will be asked for, in this order."""
        self._ahead.add([(group, tuple(names)) for group in groups])

    def open(self, group: int, names: Sequence[str], **options: Any) -> pq.ParquetFile:
        """The file of a row group, of which these columns of this row group are in memory.

        Args:
            group: Its number in the manifest.
            names: Columns.
            **options: Of ``pyarrow.parquet.ParquetFile``.

        Raises:
            OSError: The storage does not give it.
            DatasetError: The file is not the one that was converted.
        """
        return self._ahead.take((group, tuple(names)))(**options)

    def forget_ahead(self) -> None:
        """Row groups that were to be read ahead will not be asked for."""
        self._ahead.clear()

    def close(self) -> None:
        """Ends the requests under way, and forgets the files."""
        self._stopping.set()
        self._ahead.close()
        with self._lock:
            self._opened.clear()
        if self._cache is not None:
            self._cache.close()

    def _size_of(self, key: _Key) -> int:
        # Each may keep a file of the cache open, of which there must not be too many.
        return max(_LEAST_BYTES, int(self._groups.size_bytes[key[0]]))

    def _fetch(self, key: _Key) -> _OpenParquet:
        with self._lock:
            fetched = self._fetched.get(key)
            if fetched is None:
                fetched = self._fetched[key] = FetchedGroup()
        with fetched.lock:
            if not fetched.is_here:
                stored = self._fill(fetched, key)
                if stored is not None:
                    return stored
        return fetched.open

    def _fill(self, fetched: FetchedGroup, key: _Key) -> _OpenParquet | None:
        """Fetches a row group; returns what opens it in the cache, where it is there instead."""
        group, names = key
        if self._view is not None:
            names = self._view.names_in_file(int(self._groups.file[group]), names)
        number, index = int(self._groups.file[group]), int(self._groups.index_in_file[group])
        file, tail = self._file(number, names)
        ranges = column_ranges(file.metadata, index, names)
        size = self._files.dataset.manifest.files[number].size_bytes
        stored = self._stored(number, ranges)
        if stored is None and sum(wanted for _, wanted in ranges) > self._most_fetched_bytes:
            # A full disk must not end a training, and an error of the storage comes once more.
            with suppress(OSError):
                slices = cut(ranges, max(_SLICE_BYTES, self._most_held_bytes))
                stream = on_disk(size, self._pieces(number, file, slices, tail), local_folder())
                fetched.fill_from_disk(file.metadata, stream)
                return None
        if stored is None:
            pieces = list(self._pieces(number, file, ranges, tail))
            stored = self._stored(number, ranges)
        if stored is not None:
            return partial(pq.ParquetFile, stored, metadata=file.metadata)
        fetched.fill(file.metadata, size, pieces, self._hold, self._let_go)
        return None

    def _pieces(
        self, number: int, file: _RemoteFile, ranges: Iterable[tuple[int, int]], tail: bytes
    ) -> Iterator[tuple[int, memoryview]]:
        for start, size in ranges:
            yield start, self._range(number, file, start, size, tail)

    @property
    def _most_fetched_bytes(self) -> int:
        """The largest row group that is fetched whole. A larger one goes to the disk in slices.

        With a cache it is larger: a row group that the cache has in slices must be put together
        again in each epoch, and one that it has whole is read where it is.
        """
        return self._most_held_bytes if self._cache is None else self._memory_bytes

    def _stored(self, number: int, ranges: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        """A file in the cache that Arrow can read in place of a row group's own."""
        if self._cache is None or len(ranges) != 1:
            return None
        return self._cache.open(_key(number, *ranges[0]), ranges[0][0])

    def _hold(self, size: int) -> bool:
        """Counts what a row group takes while it is read; False if that is too much.

        Many row groups are read side by side, a few rows at a time, to mix them.
        """
        with self._lock:
            fits = self._held_bytes + size <= self._most_held_bytes
            self._held_bytes += size if fits else 0
        return fits

    def _let_go(self, size: int) -> None:
        with self._lock:
            self._held_bytes -= size

    def _file(self, number: int, names: Sequence[str]) -> tuple[_RemoteFile, bytes]:
        """A file with its footer, and the end of the file as far as it was read for that."""
        with self._opening[number % len(self._opening)]:
            with self._lock:
                file = self._opened.get(number)
                if file is not None:
                    self._opened.move_to_end(number)
                    return file, b""
            size = self._files.dataset.manifest.files[number].size_bytes
            least = size if self._is_wanted_whole(number, size, names) else 0
            content: bytes | memoryview | None = None if least else self._stored_footers.get(number)
            read: list[tuple[pa.NativeFile, bytes]] = []

            def fetch() -> memoryview:
                read.append(self._open(number, least))
                return memoryview(footer_of(read[0][1], self._files.path(number)))

            if content is None:
                content = self._kept(f"{number}-footer", fetch)
            stream, tail = read[0] if read else (None, b"")
            metadata = pq.read_metadata(pa.BufferReader(content))
            file = _RemoteFile(metadata=metadata, stream=stream)
            with self._lock:
                self._opened[number] = file
                self._chunks += file.chunks
                while self._chunks > self._most_chunks and len(self._opened) > 1:
                    self._chunks -= self._opened.popitem(last=False)[1].chunks
            return file, tail

    def _open(self, number: int, tail_bytes: int | None) -> tuple[pa.NativeFile, bytes]:
        stream, tail = self._patiently(lambda: self._files.open(number, tail_bytes))
        return stream, tail or b""

    def _is_wanted_whole(self, file: int, size: int, names: Sequence[str]) -> bool:
        """Whether a file has one row group, of which most is wanted: then one request will do."""
        most = min(_WHOLE_BYTES, max(_SLICE_BYTES, self._most_held_bytes))
        if size > most or self._view is not None:
            return False
        first, end = np.searchsorted(self._groups.file, [file, file + 1])
        columns = self._files.dataset.manifest.columns
        wanted = sum(column.size_bytes for column in columns if column.name in names)
        return end - first == 1 and 2 * wanted >= sum(column.size_bytes for column in columns)

    def _range(
        self, number: int, file: _RemoteFile, start: int, size: int, tail: bytes
    ) -> memoryview:
        """Bytes of a file: from the cache, from its end that is here, or from the storage."""

        def fetch() -> memoryview:
            begin = start - (self._files.dataset.manifest.files[number].size_bytes - len(tail))
            if begin >= 0:
                content = memoryview(tail)[begin : begin + size]
            else:
                with self._opening[number % len(self._opening)]:
                    if file.stream is None:
                        file.stream, _ = self._open(number, None)
                stream = file.stream
                content = memoryview(self._patiently(lambda: stream.read_at(size, start)))
            if len(content) < size:
                raise DatasetError(f"it ends after {start + len(content):,} bytes")
            return content

        return self._kept(_key(number, start, size), fetch, start)

    def _kept(self, key: str, fetch: Callable[[], memoryview], start: int = 0) -> memoryview:
        """A value of the cache, which is fetched if it is not there; just fetched without one."""
        if self._cache is None:
            return fetch()
        return self._cache.get_or_fetch(key, fetch, start, self._stopping.wait)

    def _kept_footers(self, key: str, fetch: Callable[[], memoryview]) -> memoryview:
        return self._kept(key, partial(self._patiently, fetch))

    def _patiently(self, request: Callable[[], _Answer]) -> _Answer:
        return patiently(request, self._stopping.wait)


def _key(number: int, start: int, size: int) -> str:
    return f"{number}-{start}+{size}"
