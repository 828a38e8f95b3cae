"""Footers that a conversion on remote storage keeps beside its files, fetched many at a time."""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from sparkdl_runner.base.foreign_file import ForeignFileError, open_input
from sparkdl_runner.data.dataset.footers import footers_path, unpack_footer
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles

_BLOCK_BYTES = 256 << 10
"""Footers that begin in the same so many bytes come together. Each rank reads other files in each
epoch: where there are very many, it asks for few of them."""
_LOCKS = 16

_log = logging.getLogger(__name__)

Kept = Callable[[str, Callable[[], memoryview]], memoryview]
"""Returns a value by its key in the cache of the host, and fetches it if it is not there."""


class StoredFooters:
    """The footers of a data set's files, as far as its conversion has kept them.

    Args:
        files: The files.
        kept: Where blocks of footers come from.
        memory_bytes: What blocks may take in memory.
    """

    def __init__(self, files: VerifiedFiles, kept: Kept, memory_bytes: int) -> None:
        self._files, self._kept, self._most_bytes = files, kept, memory_bytes
        manifest, directory = files.dataset.manifest, files.dataset.directory
        self._path = footers_path(directory, manifest.files[0].path) if manifest.files else ""
        sizes = manifest.footer_sizes
        self._is_there = sizes is not None
        self._ends = np.cumsum([0] if sizes is None else sizes)
        self._starts = self._ends - (0 if sizes is None else sizes)
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._fetching = [threading.Lock() for _ in range(_LOCKS)]
        self._beginning: threading.Thread | None = None

    def begin(self) -> None:
        """Begins to fetch them, if one request gets all: whatever is read first needs them."""
        if not self._is_there or not len(self._ends) or self._ends[-1] > _BLOCK_BYTES:
            return
        if self._files.written_ns(0) is not None:
            self._beginning = threading.Thread(
                target=self._fetch_all, name="sparkdl-footers", daemon=True
            )
            self._beginning.start()

    def _fetch_all(self) -> None:
        with suppress(Exception):  # The reader that needs them asks again, and raises it.
            self._block(0)

    def close(self) -> None:
        """Waits for what ``begin`` started."""
        if self._beginning is not None:
            self._beginning.join()

    def get(self, number: int) -> bytes | None:
        """The footer of a file; None if it is to be read from there.

        A file whose time nobody knows must be compared by its own footer.

        Raises:
            OSError: The storage does not give it, for a reason of its own.
        """
        if not self._is_there or self._files.written_ns(number) is None:
            return None
        start, end = int(self._starts[number]), int(self._ends[number])
        try:
            first, block = self._block(start // _BLOCK_BYTES)
            footer = unpack_footer(block[start - first : end - first])
            if zlib.crc32(footer) != self._files.dataset.manifest.files[number].footer_crc32:
                raise ForeignFileError("it is not the one that the manifest knows")
        except (FileNotFoundError, ForeignFileError) as error:
            with self._lock:
                is_new, self._is_there = self._is_there, False
            if is_new:
                _log.warning(
                    "%s does not have the footer of %s (%s): footers are read from each file.",
                    self._path,
                    self._files.path(number),
                    error,
                )
            return None
        return footer

    def _block(self, index: int) -> tuple[int, memoryview]:
        """A block's start in the file, and its bytes."""
        first, last = np.searchsorted(self._starts, [n * _BLOCK_BYTES for n in (index, index + 1)])
        start, end = int(self._starts[first]), int(self._ends[last - 1])

        def fetch() -> memoryview:
            with open_input(self._files.dataset.filesystem, self._path) as stream:
                there = stream.size()
                return memoryview(stream.read_at(min(end, there) - min(start, there), start))

        with self._fetching[index % _LOCKS]:
            with self._lock:
                block = self._blocks.get(index)
            if block is None:
                block = self._kept(f"footers-{start}+{end - start}", fetch)
                with self._lock:
                    self._blocks[index] = block
                    self._bytes += len(block)
                    while self._bytes > self._most_bytes and len(self._blocks) > 1:
                        self._bytes -= len(self._blocks.popitem(last=False)[1])
        return start, block
