"""How fast ranks read a table: each reads its shard once, in a process of its own."""

from __future__ import annotations

from benchmarks.ranks.processes import in_fresh_processes
from benchmarks.suite.case import Figure
from benchmarks.tables.loader_tables import PETASTORM_ROWS, THREADS, Shard

SPEED, BY_PROCESSOR = "speed", "by processor time"
FIRST_BATCH, MEMORY = "first batch", "memory"
FIGURES = {
    SPEED: Figure(unit="rows/s", better="more"),
    # Other programs change this far less than the time on the clock.
    BY_PROCESSOR: Figure(unit="rows/s", better="more"),
    FIRST_BATCH: Figure(unit="s", better="less"),
    MEMORY: Figure(unit="MB", better="less"),
}
"""Of all ranks together the rows by the clock and by a core's time, of the last rank the seconds
until it has a batch, and of the largest what it takes beyond its imports."""
FACTS = {
    "time": "from making a loader to its last batch, without imports",
    "threads": THREADS,
    "petastorm": f"shuffles among {PETASTORM_ROWS:,} rows; by default none, which is faster",
    "petastorm_unmixed": "shuffles the rows of each row group among themselves, as naive does",
}
_NOT_BY_PETASTORM = ("ragged", "string")
"""Tables of lists and texts, of which it makes no tensors."""
PRELOADED = ("benchmarks.peers.table_readers", "petastorm.pytorch")


def measured(engine: str, *shards: Shard) -> dict[str, float]:
    """Reads shards of a table with fresh loaders in fresh processes, all at the same time.

    Returns:
        A number for each of ``FIGURES``; none where the engine, of ``table_readers.ENGINES``, does
        not read such a table, or finds nothing in these shards.
    """
    from benchmarks.peers.table_readers import read  # It imports what only readers need.

    if engine.startswith("petastorm") and shards[0].table in _NOT_BY_PETASTORM:
        return {}
    found = in_fresh_processes(read, [(engine, one) for one in shards], preloaded=PRELOADED)
    rows, seconds, cpu_seconds, first, memory = zip(*found, strict=True)
    if not sum(rows):
        return {}
    return {
        SPEED: sum(rows) / max(seconds),
        BY_PROCESSOR: sum(rows) / sum(cpu_seconds),
        FIRST_BATCH: max(first),
        MEMORY: max(memory) / 1e6,
    }
