"""What a rank reads of a table."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 2  # That decode for a rank, whatever reads.


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one rank reads of a table, in batches of its own size, and in which order."""

    table: str
    folder: str
    batch_size: int
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    seed: int = 0
