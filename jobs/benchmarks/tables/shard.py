"""The part of a table that one rank reads."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 2  # That decode for a rank, whatever reads.


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The rows of a table that one rank reads, their order, and the size of its batches."""

    table: str
    folder: str
    batch_size: int
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    seed: int = 0
