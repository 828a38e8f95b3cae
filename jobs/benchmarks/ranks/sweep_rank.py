"""One reader of the sweep: reads its shard of a table once, and says what that took.

It runs in a process of its own, forked from one that has made all imports, as a training has, and
has read nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401  Arrow's to_numpy imports it, which should not count.
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import torch

import sparkdl_runner.data.batches.device  # noqa: F401  Imported late, which should not count.
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.manifest import Manifest

QUEUE_ROWS = 50_000
"""The rows among which petastorm shuffles."""
_LISTS = ("texts", "ragged")


def read(engine: str, request: dict[str, Any]) -> dict[str, float]:
    """Reads one shard with a fresh loader, from making it to its last batch.

    Args:
        engine: ``"ours"``, ``"petastorm"`` or ``"naive"``.
        request: The table's folder and kind, batch, shuffle, seed, shard and world.

    Returns:
        Rows, seconds by the clock, by the processor (of all threads) and to the first batch.
    """
    # Imports leave garbage. Collecting it takes long, and is no side's work: so before the clock.
    gc.collect()
    batches = _ENGINES[engine](request)
    rows, first = 0, 0.0
    began, cpu_began = time.perf_counter(), time.process_time()
    ended, cpu_ended = began, cpu_began
    for count in batches:
        ended, cpu_ended = time.perf_counter(), time.process_time()
        first = first or ended - began
        rows += count
    return {
        "rows": rows,
        "seconds": ended - began,
        "cpu_seconds": cpu_ended - cpu_began,
        "first_batch_seconds": first,
    }


def _ours(request: dict[str, Any]) -> Iterator[int]:
    filesystem, folder = pa.fs.LocalFileSystem(), request["folder"]
    ragged = ["x"] if request["kind"] == "ragged" else []
    with ArrowLoader(
        Manifest.read(filesystem, folder),
        filesystem,
        folder,
        batch_size=request["batch"],
        shuffle=request["shuffle"],
        seed=request["seed"],
        cur_shard=request["shard"],
        shard_count=request["world"],
        tail="uneven",
        ragged=ragged,
    ) as loader:
        for batch in loader:
            yield len(batch["x_offsets"]) - 1 if ragged else len(next(iter(batch.values())))


def _petastorm(request: dict[str, Any]) -> Iterator[int]:
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    def batches() -> Iterator[int]:
        shuffle = request["shuffle"]
        reader = make_batch_reader(
            [f"file://{path}" for path in sorted(Path(request["folder"]).glob("*.parquet"))],
            cur_shard=request["shard"],
            shard_count=request["world"],
            seed=request["seed"],
            shuffle_row_groups=shuffle,
            num_epochs=1,
            workers_count=2,
        )
        capacity = QUEUE_ROWS if shuffle else 0
        with BatchedDataLoader(
            reader, batch_size=request["batch"], shuffling_queue_capacity=capacity
        ) as loader:
            for batch in loader:
                yield len(next(iter(batch.values())))

    return batches()


def _naive(request: dict[str, Any]) -> Iterator[int]:
    """A loop written by hand: row groups, a random permutation of each, slices.

    A rank takes every so manieth row group; where there are fewer of them than ranks, its share of
    all rows. Rows that fill no batch wait for those of the next row group.
    """
    generator = torch.Generator().manual_seed(request["seed"])
    parts = _parts(request)
    places = torch.randperm(len(parts), generator=generator).tolist()
    is_list = request["kind"] in _LISTS
    held: list[dict[str, Any]] = []
    rows, size = 0, request["batch"]
    for place in places if request["shuffle"] else range(len(parts)):
        path, group, begin, end = parts[place]
        table = pq.ParquetFile(path).read_row_group(group).slice(begin, end - begin)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        order = torch.randperm(len(table), generator=generator) if request["shuffle"] else None
        held.append({name: _shuffled(one, order, is_list) for name, one in columns.items()})
        rows += len(table)
        if rows < size:
            continue
        joined = _joined(held)
        for start in range(0, rows - size + 1, size):
            yield _batch(joined, start, size, request["kind"])
        left, rows = rows - rows % size, rows % size
        held = [{name: one[left:] for name, one in joined.items()}]
    if rows:
        yield _batch(_joined(held), 0, rows, request["kind"])


def _parts(request: dict[str, Any]) -> list[tuple[Path, int, int, int]]:
    """The row groups of a shard: path, number, and which of their rows."""
    groups = []
    for path in sorted(Path(request["folder"]).glob("*.parquet")):
        footer = pq.ParquetFile(path).metadata
        groups += [(path, at, footer.row_group(at).num_rows) for at in range(footer.num_row_groups)]
    shard, world = request["shard"], request["world"]
    if len(groups) >= world:
        return [(path, at, 0, rows) for path, at, rows in groups[shard::world]]
    total = sum(rows for _, _, rows in groups)
    first, last = total * shard // world, total * (shard + 1) // world
    parts, passed = [], 0
    for path, at, rows in groups:
        begin, end = max(first - passed, 0), min(last - passed, rows)
        if begin < end:
            parts.append((path, at, begin, end))
        passed += rows
    return parts


def _shuffled(column: Any, order: torch.Tensor | None, is_list: bool) -> Any:
    """A column of a row group in its new order: Arrow's own for lists and texts, else a tensor."""
    if is_list:
        return column if order is None else column.take(pa.array(order.numpy()))
    is_array = pa.types.is_list(column.type)
    values = column.flatten() if is_array else column
    numbers: Any = torch.from_numpy(values.to_numpy())
    numbers = numbers.reshape(len(column), -1) if is_array else numbers
    return numbers if order is None else torch.index_select(numbers, 0, order)


def _joined(held: list[dict[str, Any]]) -> dict[str, Any]:
    if len(held) == 1:
        return held[0]
    is_tensor = isinstance(next(iter(held[0].values())), torch.Tensor)
    join: Callable[[list[Any]], Any] = torch.cat if is_tensor else pa.concat_arrays
    return {name: join([one[name] for one in held]) for name in held[0]}


def _batch(columns: dict[str, Any], start: int, size: int, kind: str) -> int:
    """Makes a batch of the kind that our loader gives, and counts its rows."""
    batch = {name: column[start : start + size] for name, column in columns.items()}
    if kind == "texts":
        batch = {name: column.to_pylist() for name, column in batch.items()}
    if kind == "ragged":
        lists = batch.pop("x")
        offsets = torch.from_numpy(lists.offsets.to_numpy().astype(np.int64))
        batch["x"] = torch.from_numpy(lists.flatten().to_numpy())
        batch["x_offsets"] = offsets - offsets[0]
        return len(batch["x_offsets"]) - 1
    return len(next(iter(batch.values())))


_ENGINES: dict[str, Callable[[dict[str, Any]], Iterator[int]]] = {
    "ours": _ours,
    "petastorm": _petastorm,
    "naive": _naive,
}
