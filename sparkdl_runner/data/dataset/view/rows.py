"""Which rows of a row group count, packed into bits, so that a converter can carry them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

MOST_BYTES = 16 << 20
"""More than this is not sent to every rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveRows:
    """The rows that count, of those row groups of which not all do."""

    rows: Mapping[int, int] = field(default_factory=dict)
    """For each row group, its rows in the file, live or not."""
    bits: Mapping[int, bytes] = field(default_factory=dict)
    """For each row group, one bit for each row, compressed."""

    @classmethod
    def of(cls, live: Mapping[int, BoolArray]) -> LiveRows:
        """Packs ``[rows of the row group]`` of each row group that has rows that do not count."""
        return cls(
            rows={group: len(keep) for group, keep in live.items()},
            bits={group: pack(keep) for group, keep in live.items()},
        )

    def of_group(self, group: int) -> BoolArray | None:
        """Bool ``[rows in the file]``, which rows of a row group count; None where all do."""
        packed = self.bits.get(group)
        return None if packed is None else unpack(packed, self.rows[group])

    @property
    def size_bytes(self) -> int:
        """Bytes that travel with the converter."""
        return sum(len(packed) for packed in self.bits.values())


def pack(keep: BoolArray) -> bytes:
    """Bits of a bool array, compressed: a few deleted rows take next to nothing."""
    return zlib.compress(np.packbits(keep).tobytes(), 1)


def unpack(packed: bytes, rows: int) -> BoolArray:
    """Unpacks the result of ``pack``."""
    bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    return np.unpackbits(bits, count=rows).astype(np.bool_)
