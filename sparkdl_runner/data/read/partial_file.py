"""A file of which some pieces are here, in memory or on the local disk, to be read by Arrow."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO


class PartialFile:
    """A file to read, with the methods of Python's that Arrow calls.

    Args:
        size_bytes: Of the whole file.
        pieces: Where each piece begins in it, and its bytes.
    """

    closed = False

    def __init__(self, size_bytes: int, pieces: list[tuple[int, memoryview]]) -> None:
        self._size_bytes, self._at = size_bytes, 0
        self._pieces = pieces
        self._disk: BinaryIO | None = None
        self._places: list[tuple[int, int, int]] = []

    @property
    def held_bytes(self) -> int:
        """What the pieces take in memory."""
        return sum(len(content) for _, content in self._pieces)

    def move_to_disk(self, folder: Path | None) -> bool:
        """Moves the pieces to a file without a name; false if the disk does not take them."""
        try:
            disk = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - kept open
            for start, content in self._pieces:
                place, done = disk.tell(), 0
                while done < len(content):
                    done += disk.write(content[done:]) or 0
                self._places.append((start, len(content), place))
        except OSError:
            self._places.clear()
            return False
        self._disk, self._pieces = disk, []
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """As Python's."""
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        """As Python's."""
        return self._at

    def read(self, size: int = -1) -> memoryview | bytes:
        """As Python's, from pieces that are here and follow one another; nothing from elsewhere."""
        part = self._piece_at(size)
        while part and len(part) < size:  # Arrow reads columns at once that lie side by side.
            more = self._piece_at(size - len(part))
            if not more:
                break
            part = b"".join((part, more))
        return part

    def _piece_at(self, size: int) -> memoryview | bytes:
        part: memoryview | bytes = b""
        for start, content in self._pieces:
            if start <= self._at < start + len(content):
                part = content[self._at - start :][: size if size >= 0 else None]
                break
        for start, length, place in self._places:
            if self._disk is not None and start <= self._at < start + length:
                left = start + length - self._at
                wanted = left if size < 0 else min(size, left)
                part = os.pread(self._disk.fileno(), wanted, place + self._at - start)
                break
        self._at += len(part)
        return part

    def readable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Lets the pieces go."""
        self._pieces, self._places, self.closed = [], [], True
        if self._disk is not None:
            self._disk.close()
