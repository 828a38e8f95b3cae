"""The ways to read a shard of a table that are measured beside each other, ours among them.

Each runs in a process of its own, forked from one that has made all imports, as a training has, and
has read nothing: so they share no memory, cache or thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401  Arrow's to_numpy imports it, which should not count.
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import torch

import sparkdl_runner.data.batches.device  # noqa: F401  Imported late, which should not count.
from benchmarks.ranks.processes import await_others
from benchmarks.ranks.stages import status_bytes
from benchmarks.tables.loader_tables import PETASTORM_ROWS, THREADS, Shard
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.manifest import Manifest

_Batches = Iterator[Mapping[str, Any]]


def read(engine: str, shard: Shard) -> tuple[int, float, float, float, int]:
    """Reads one shard with a fresh loader, from making it to its last batch.

    Returns:
        Rows, seconds by the clock, by the processor (of all threads) and to the first batch, and
        bytes of memory at most, beyond those before.
    """
    batches = ENGINES[engine](shard)
    # Imports leave garbage. Collecting it takes long, and is no side's work: so before the clock.
    gc.collect()
    rows, first, memory = 0, 0.0, status_bytes("VmRSS")
    await_others()
    began, cpu_began = time.perf_counter(), time.process_time()
    ended, cpu_ended = began, cpu_began
    for batch in batches:
        rows += _rows(batch)
        ended, cpu_ended = time.perf_counter(), time.process_time()
        first = first or ended - began
    return rows, ended - began, cpu_ended - cpu_began, first, status_bytes("VmHWM") - memory


def _rows(batch: Mapping[str, Any]) -> int:
    if "visits_offsets" in batch:
        return len(batch["visits_offsets"]) - 1
    return len(next(iter(batch.values())))


def _arrow(shard: Shard) -> _Batches:
    filesystem = pyarrow.fs.LocalFileSystem()
    with ArrowLoader(
        Manifest.read(filesystem, shard.folder),
        filesystem,
        shard.folder,
        batch_size=shard.batch_size,
        shuffle=shard.shuffle,
        seed=shard.seed,
        cur_shard=shard.rank,
        shard_count=shard.ranks,
        workers_count=THREADS,
        tail="uneven",
        ragged=["visits"] if shard.table == "ragged" else [],
    ) as loader:
        yield from loader


def _petastorm(shard: Shard, *, mixes_groups: bool = True) -> _Batches:
    # These were imported before the process was forked: see PRELOADED in shards.py.
    from petastorm import make_batch_reader
    from petastorm.errors import NoDataAvailableError
    from petastorm.pytorch import BatchedDataLoader

    try:
        reader = make_batch_reader(
            [f"file://{path}" for path in sorted(Path(shard.folder).glob("*.parquet"))],
            cur_shard=shard.rank,
            shard_count=shard.ranks,
            seed=shard.seed,
            shuffle_row_groups=shard.shuffle,
            shuffle_rows=shard.shuffle and not mixes_groups,
            workers_count=THREADS,
        )
    except NoDataAvailableError:
        return  # It cuts no row groups: with fewer of them than ranks, some have nothing.
    queue = PETASTORM_ROWS if shard.shuffle and mixes_groups else 0
    with BatchedDataLoader(reader, shard.batch_size, shuffling_queue_capacity=queue) as loader:
        yield from loader


def _naive(shard: Shard) -> _Batches:
    """A loop written by hand: row groups, a random permutation of each, slices.

    A rank takes every so manieth row group; where there are fewer of them than ranks, its share of
    all rows. Rows that fill no batch wait for those of the next row group.
    """
    generator = torch.Generator().manual_seed(shard.seed)
    parts, size, kind = _parts(shard), shard.batch_size, shard.table
    places = torch.randperm(len(parts), generator=generator).tolist()
    left: list[pa.Table] = []
    for number, place in enumerate(places if shard.shuffle else range(len(parts)), 1):
        table = pa.concat_tables([*left, _decoded(parts[place])])
        count = len(table) if number == len(parts) else len(table) // size * size
        order = torch.randperm(count, generator=generator) if shard.shuffle else None
        arrays = {name: table[name][:count].combine_chunks() for name in table.column_names}
        columns = {name: _shuffled(kind, one, order) for name, one in arrays.items()}
        for start in range(0, count, size):
            yield _batch(columns, start, size, kind)
        left = [table[count:]]


_Part = tuple[Path, int, int, int]  # A row group: path, number, and which of its rows.


def _parts(shard: Shard) -> list[_Part]:
    groups: list[_Part] = []
    for path in sorted(Path(shard.folder).glob("*.parquet")):
        footer = pq.ParquetFile(path).metadata
        rows = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
        groups += [(path, at, 0, count) for at, count in enumerate(rows)]
    if len(groups) >= shard.ranks:
        return groups[shard.rank :: shard.ranks]
    *begins, total = accumulate((rows for *_, rows in groups), initial=0)
    first, last = (total * one // shard.ranks for one in (shard.rank, shard.rank + 1))
    parts = [
        (path, at, max(first - begin, 0), min(last - begin, rows))
        for (path, at, _, rows), begin in zip(groups, begins, strict=True)
    ]
    return [one for one in parts if one[2] < one[3]]


def _decoded(part: _Part, *, use_threads: bool = True) -> pa.Table:
    path, group, begin, end = part
    table = pq.ParquetFile(path).read_row_group(group, use_threads=use_threads)
    return table.slice(begin, end - begin)


def _shuffled(table: str, column: Any, order: torch.Tensor | None) -> Any:
    """A column of a row group in its new order: Arrow's own, or a tensor."""
    if table in ("ragged", "string"):  # Rows that differ in length.
        return column if order is None else column.take(pa.array(order.numpy()))
    is_array = pa.types.is_list(column.type)
    numbers: Any = torch.from_numpy((column.flatten() if is_array else column).to_numpy())
    numbers = numbers.reshape(len(column), -1) if is_array else numbers
    return numbers if order is None else torch.index_select(numbers, 0, order)


def _batch(columns: dict[str, Any], start: int, size: int, table: str) -> dict[str, Any]:
    """A batch of the kind that our loader gives."""
    batch = {name: column[start : start + size] for name, column in columns.items()}
    if table == "string":
        return {name: column.to_pylist() for name, column in batch.items()}
    if table == "ragged":
        lists = batch["visits"]
        offsets = torch.from_numpy(lists.offsets.to_numpy().astype(np.int64))
        values = torch.from_numpy(lists.flatten().to_numpy())
        return {"visits": values, "visits_offsets": offsets - offsets[0]}
    return batch


def _decode_only(shard: Shard) -> _Batches:
    """Arrow's decoding, in as many threads, of which nothing is kept."""

    def counted(part: _Part) -> dict[str, range]:
        return {"": range(len(_decoded(part, use_threads=False)))}

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(counted, _parts(shard))


ENGINES: dict[str, Callable[[Shard], _Batches]] = {
    "arrow": _arrow,
    "petastorm_batched": _petastorm,
    "petastorm_unmixed": partial(_petastorm, mixes_groups=False),
    "naive": _naive,
    "decode_only": _decode_only,
}
"""By name what iterates over the batches of a shard."""
