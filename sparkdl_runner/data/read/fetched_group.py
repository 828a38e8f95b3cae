"""A remote row group that is here, for all who read it at the same time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.read.cache_choice import local_folder
from sparkdl_runner.data.read.partial_file import Pieces, in_memory, on_disk


class FetchedGroup:
    """The bytes of a row group that are wanted, in memory or on the local disk.

    They stay as long as this object or a file that it opened: lanes of one rank may each read a
    part of the row group.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held by who fetches it; others wait."""
        self._pieces: Pieces | None = None
        self._is_placed = False
        self._stream: pa.NativeFile | None = None
        """Its file on the disk, if it is there."""

    @property
    def is_here(self) -> bool:
        """Whether somebody has fetched it."""
        return self._pieces is not None

    def fill(
        self,
        metadata: pq.FileMetaData,
        size_bytes: int,
        pieces: Pieces,
        hold: Callable[[int], bool],
        let_go: Callable[[int], object],
    ) -> None:
        """Gives it what was fetched.

        Args:
            metadata: The footer of its file.
            size_bytes: Of that file.
            pieces: Of that file.
            hold: Called with their size when they are first read; false if they are to be moved to
                the disk.
            let_go: Called with the same size, where that was true, when nobody reads them any more.
        """
        self._metadata, self._size_bytes, self._pieces = metadata, size_bytes, pieces
        self._hold, self._let_go = hold, let_go

    def fill_from_disk(self, metadata: pq.FileMetaData, stream: pa.NativeFile) -> None:
        """Gives it what was fetched to the disk at once: its file there, and that file's footer."""
        self._metadata, self._stream, self._pieces = metadata, stream, ()
        self._is_placed = True

    def open(self, **options: Any) -> pq.ParquetFile:
        """Opens its file for one reader, with options of ``pyarrow.parquet.ParquetFile``."""
        with self.lock:
            if not self._is_placed:
                self._place(self._pieces or ())
        # Arrow reads at places that it names: readers of one file do not disturb each other.
        stream = self._stream
        if stream is None:
            stream = in_memory(self._size_bytes, self._pieces or ())
            options["buffer_size"] = 0
        parquet = pq.ParquetFile(stream, metadata=self._metadata, **options)
        weakref.finalize(parquet, _nobody_else, self)
        return parquet

    def _place(self, pieces: Pieces) -> None:
        """Keeps the pieces in memory, or moves them to the disk."""
        self._is_placed = True
        # A piece may be a part of what one request brought, and keeps all of that.
        held = sum(memoryview(content.obj).nbytes for _, content in pieces)
        if self._hold(held):
            weakref.finalize(self, self._let_go, held)
            return
        with suppress(OSError):  # A full disk must not end a training.
            self._stream = on_disk(self._size_bytes, pieces, local_folder())
            self._pieces = ()


def _nobody_else(_: FetchedGroup) -> None:
    """Lets go of a row group that was kept for an open file."""
