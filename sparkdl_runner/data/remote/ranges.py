"""Reads row groups of remote files: in few large requests, ahead of the threads that decode them.

A row group's columns lie beside one another in their file, so one request gets them all, and a
second one the file's footer, once. What is read can be kept in a cache on the local disk. Requests
that fail for a while are repeated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import read_into
from sparkdl_runner.base.retrying import patiently
from sparkdl_runner.data.dataset.footers import footer_of
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.arrow_schema import read_metadata
from sparkdl_runner.data.remote.byte_ranges import ByteRange, column_ranges
from sparkdl_runner.data.remote.cache_choice import local_folder
from sparkdl_runner.data.remote.disk_cache import DiskCache
from sparkdl_runner.data.remote.memory_pool import MemoryPool
from sparkdl_runner.data.remote.partial_file import Extents, FetchedGroup, on_disk
from sparkdl_runner.data.remote.read_ahead import THREADS, ReadAhead
from sparkdl_runner.data.remote.stored_footers import StoredFooters

_WHOLE_BYTES = 64 << 20
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
        memory_bytes: What may be in memory: a sixth of it footers, the rest row groups.
            ``allow_more`` gives more.
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
        # Lanes of this rank may share row groups, and read their segments side by side.
        self._fetched: WeakValueDictionary[_Key, FetchedGroup] = WeakValueDictionary()
        self._lock = threading.RLock()  # Collecting garbage may let go at any place.
        self._opening = [threading.Lock() for _ in range(2 * THREADS)]
        self._stopping = stopping
        self._least_bytes = memory_bytes - memory_bytes // 6
        self._pool = MemoryPool(self._least_bytes, stopping)
        self._ahead = ReadAhead(self._fetch, self._size_of, self._pool.largest_bytes)
        self._stored_footers.begin()

    def allow_more(self, more_bytes: int) -> None:
        """Row groups, and what passes to the cache, may take so much more memory."""
        self._pool.limit_bytes = self._least_bytes + more_bytes
        self._ahead.limit_bytes = self._pool.largest_bytes

    def read_ahead(self, groups: Iterable[int], names: Sequence[str]) -> None:
        """Begins to read row groups that will be asked for, in this order."""
        self._ahead.add([(group, tuple(names)) for group in groups])

    def open(self, group: int, names: Sequence[str], **options: Any) -> pq.ParquetFile:
        """The file of a row group, of which these columns of this row group are here.

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
        self._stored_footers.close()
        self._pool.close()
        with self._lock:
            self._opened.clear()
        if self._cache is not None:
            self._cache.close()

    def _size_of(self, key: _Key) -> int:
        """How much of what may be ahead a row group takes."""
        size, most = int(self._groups.size_bytes[key[0]]), self._ahead.limit_bytes // 2
        if self._cache is not None or size > self._pool.largest_bytes:
            # It passes through memory to a disk. More of them at a time would only keep other
            # ranks of this host from fetching them.
            size = min(size, most)
        # Each may keep a file of the cache open, of which there must not be too many.
        return max(_LEAST_BYTES, size)

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
        found = column_ranges(file.metadata, index, names)
        ranges = [self._range(number, file, start, size, tail) for start, size in found]
        del tail
        if self._cache is not None:
            stored = [self._stored(self._cache, number, file, one) for one in ranges]
            if len(stored) == 1 and stored[0] is not None:
                return partial(pq.ParquetFile, stored[0], metadata=file.metadata)
        size = self._files.dataset.manifest.files[number].size_bytes
        extents = self._in_memory(ranges)
        if extents is None:
            # A full disk must not end a training, and an error of the storage comes once more.
            with suppress(OSError):
                passing = chain.from_iterable(one.passing(self._pool) for one in ranges)
                fetched.fill_from_disk(file.metadata, on_disk(size, passing, local_folder()))
                return None
            extents = self._in_memory(ranges, always=True)
        fetched.fill(file.metadata, size, extents or ())
        return None

    def _range(
        self, number: int, file: _RemoteFile, start: int, size: int, tail: memoryview
    ) -> ByteRange:
        """A range of a file, of whose end so much is here."""
        begin = start - (self._files.dataset.manifest.files[number].size_bytes - len(tail))
        return ByteRange(
            start=start,
            size=size,
            read=partial(self._read, number, file),
            content=tail[begin : begin + size] if begin >= 0 else None,
        )

    def _stream(self, number: int, file: _RemoteFile) -> pa.NativeFile:
        with self._opening[number % len(self._opening)]:
            if file.stream is None:
                file.stream, _ = self._patiently(
                    lambda: self._files.open(number, knows_footer=True)
                )
            return file.stream

    def _read(self, number: int, file: _RemoteFile, start: int, memory: memoryview) -> None:
        stream = self._stream(number, file)
        found = self._patiently(lambda: read_into(stream, start, memory))
        if found < len(memory):
            raise DatasetError(f"it ends after {start + found:,} bytes")

    def _stored(
        self, cache: DiskCache, number: int, file: _RemoteFile, wanted: ByteRange
    ) -> pa.NativeFile | None:
        """A file in the cache that Arrow can read in place of a range's own, if there is room."""

        def begin() -> tuple[int, Iterable[memoryview]]:
            if wanted.content is None:
                self._stream(number, file)  # Opened while the row group waits for memory.
            return wanted.size, (content for _, content in wanted.passing(self._pool))

        stream = cache.open_or_fill(
            f"{number}-{wanted.start}+{wanted.size}", begin, wanted.start, self._stopping.wait
        )
        if stream is not None:
            wanted.read = lambda start, memory: _read_stored(stream, start, memory)
        return stream

    def _in_memory(self, ranges: Sequence[ByteRange], *, always: bool = False) -> Extents | None:
        """All ranges in memory; None if the pool has not so much left, unless ``always``."""
        if all(one.content is not None for one in ranges):
            return [(one.start, one.content) for one in ranges if one.content is not None]
        size = sum(one.size for one in ranges)
        if size > self._pool.largest_bytes and not always:
            return None
        memory = self._pool.take(size, always=always)
        if memory is None:
            return None
        extents = []
        for one in ranges:
            content, memory = memory[: one.size], memory[one.size :]
            one.read_to(content)
            extents.append((one.start, content))
        return extents

    def _file(self, number: int, names: Sequence[str]) -> tuple[_RemoteFile, memoryview]:
        """A file with its footer, and the end of the file as far as it was read for that."""
        with self._opening[number % len(self._opening)]:
            with self._lock:
                file = self._opened.get(number)
                if file is not None:
                    self._opened.move_to_end(number)
                    return file, memoryview(b"")
            size = self._files.dataset.manifest.files[number].size_bytes
            whole = self._pool.take(size) if self._is_wanted_whole(number, size, names) else None
            content: bytes | memoryview | None = None
            if whole is None:
                content = self._stored_footers.get(number)
            read: list[tuple[pa.NativeFile, memoryview]] = []

            def fetch() -> memoryview:
                stream, tail = self._patiently(lambda: self._files.open(number, whole=whole))
                read.append((stream, memoryview(tail or b"")))
                return memoryview(footer_of(read[0][1], self._files.path(number)))

            if content is None:
                content = self._kept(f"{number}-footer", fetch)
            stream, tail = read[0] if read else (None, memoryview(b""))
            metadata = read_metadata(content)
            file = _RemoteFile(metadata=metadata, stream=stream)
            with self._lock:
                self._opened[number] = file
                self._chunks += file.chunks
                while self._chunks > self._most_chunks and len(self._opened) > 1:
                    self._chunks -= self._opened.popitem(last=False)[1].chunks
            return file, tail

    def _is_wanted_whole(self, file: int, size: int, names: Sequence[str]) -> bool:
        """Whether a file has one row group, of which most is wanted: then one request will do."""
        if size > min(_WHOLE_BYTES, self._pool.largest_bytes) or self._view is not None:
            return False
        first, end = np.searchsorted(self._groups.file, [file, file + 1])
        columns = self._files.dataset.manifest.columns
        wanted = sum(column.size_bytes for column in columns if column.name in names)
        return end - first == 1 and 2 * wanted >= sum(column.size_bytes for column in columns)

    def _kept(self, key: str, fetch: Callable[[], memoryview]) -> memoryview:
        """A value of the cache, which is fetched if it is not there; just fetched without one."""
        if self._cache is None:
            return fetch()
        return self._cache.get_or_fetch(key, fetch, 0, self._stopping.wait)

    def _kept_footers(self, key: str, fetch: Callable[[], memoryview]) -> memoryview:
        return self._kept(key, partial(self._patiently, fetch))

    def _patiently(self, request: Callable[[], _Answer]) -> _Answer:
        return patiently(request, self._stopping.wait)


def _read_stored(stream: pa.NativeFile, start: int, memory: memoryview) -> None:
    if read_into(stream, start, memory) < len(memory):
        raise OSError("the cache's file was cut short")
