"""One rank of one measurement: reads its shard with one engine, and prints how long that took.

It is a process of its own, so that engines share no memory, cache or thread. Its only argument says
as JSON what to read.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.loader_tables import IMAGE_SIZE, LIST_LENGTH, SCALARS, SEQUENCE_LENGTH


def _measure(request: dict[str, Any]) -> None:
    """Reads a rank's shard once, and prints how long that took."""
    try:
        batches = _READERS[request["engine"]](request)
    except ImportError as error:
        print(error, flush=True)
        return
    print("ready", flush=True)
    sys.stdin.readline()
    rows, first = 0, None
    began, cpu_began = time.perf_counter(), time.process_time()
    for count in batches():
        if first is None:
            first = time.perf_counter() - began
        rows += count
        if request["row_limit"] is not None and rows >= request["row_limit"]:
            break
    seconds = time.perf_counter() - began
    answer = {
        "rows": rows,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_began,
        "first_batch_seconds": first or seconds,
        "peak_rss": _peak_rss(),
    }
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a reader that was left in the middle may take long to stop its threads


def _peak_rss() -> int:
    """Bytes; unlike getrusage's, of this program alone and not of what it was started from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


_Reader = Callable[[dict[str, Any]], Callable[[], Iterator[int]]]


def _arrow(request: dict[str, Any], **more: Any) -> Callable[[], Iterator[int]]:
    import pyarrow.fs
    import torch  # noqa: F401  A training has imported it, and so have the others here.

    import sparkdl_runner.data.batches.device  # noqa: F401  Late imports should not count.
    from sparkdl_runner.data.batches.loader import ArrowLoader
    from sparkdl_runner.data.dataset.manifest import Manifest

    directory, filesystem = request["directory"], pyarrow.fs.LocalFileSystem()
    if request["table"] == "image":
        more["images"] = {"image": IMAGE_SIZE}
    elif request["table"] == "padded":
        more["pad"] = {"visits": LIST_LENGTH}
    elif request["table"] == "ragged":
        more["ragged"] = ["visits"]
    elif request["table"] == "packed":
        more["pack"] = {"tokens": SEQUENCE_LENGTH}

    def batches() -> Iterator[int]:
        with ArrowLoader(
            Manifest.read(filesystem, directory),
            filesystem,
            directory,
            batch_size=request["batch_size"],
            cur_shard=request["rank"],
            shard_count=request["ranks"],
            num_epochs=request["epochs"],
            workers_count=request["workers_count"],
            tail="uneven",
            **more,
        ) as loader:
            yield from map(_COUNTS.get(request["table"], _rows), loader)

    return batches


def _rows(batch: dict[str, Any]) -> int:
    """Rows of a batch, counted as the other readers' are: it costs them and us the same."""
    return len(next(iter(batch.values())))


_COUNTS: dict[str, Callable[[dict[str, Any]], int]] = {
    "packed": lambda batch: int(np.count_nonzero(batch["tokens_document_ids"].numpy())),
    "ragged": lambda batch: len(batch["visits_offsets"]) - 1,
}
"""How rows, or tokens, are counted where the first array of a batch is not one entry a row."""


def _petastorm(request: dict[str, Any], *, by_row: bool) -> Callable[[], Iterator[int]]:
    from petastorm import TransformSpec, make_batch_reader
    from petastorm.pytorch import BatchedDataLoader, DataLoader

    directory = Path(request["directory"])
    transform = None
    if request["table"] == "vector":  # petastorm's converter stores ML vectors as arrays
        directory = directory.with_name(directory.name.replace("vector", "vector_as_array"))
    if request["table"] == "image":

        def decode(frame: Any) -> Any:
            frame["image"] = frame["image"].map(_pillow)
            return frame

        field = ("image", np.uint8, (*IMAGE_SIZE, 3), False)
        transform = TransformSpec(decode, edit_fields=[field])
    urls = [f"file://{path}" for path in sorted(directory.glob("*.parquet"))]
    loader_class = DataLoader if by_row else BatchedDataLoader

    def batches() -> Iterator[int]:
        reader = make_batch_reader(
            urls,
            cur_shard=request["rank"],
            shard_count=request["ranks"],
            num_epochs=request["epochs"],
            workers_count=request["workers_count"],
            transform_spec=transform,
        )
        with loader_class(
            reader,
            batch_size=request["batch_size"],
            shuffling_queue_capacity=request["capacity"],
        ) as loader:
            for batch in loader:
                yield len(next(iter(batch.values())))

    return batches


def _shard(request: dict[str, Any]) -> list[tuple[Path, int]]:
    import pyarrow.parquet as pq

    groups = [
        (path, group)
        for path in sorted(Path(request["directory"]).glob("*.parquet"))
        for group in range(pq.ParquetFile(path).num_row_groups)
    ]
    return groups[request["rank"] :: request["ranks"]]


def _naive(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    """A loop written by hand: a row group, a random permutation, slices."""
    import pandas  # noqa: F401  Arrow's to_numpy imports it, which should not count.
    import pyarrow.parquet as pq
    import torch

    def batches() -> Iterator[int]:
        for _ in range(request["epochs"]):
            groups = _shard(request)
            for place in torch.randperm(len(groups)).tolist():
                path, group = groups[place]
                table = pq.ParquetFile(path).read_row_group(group)
                order = torch.randperm(table.num_rows)
                if request["table"] in _LISTS:
                    yield from _naive_lists(request, table.take(order.numpy()))
                    continue
                tensors = {
                    name: torch.index_select(torch.from_numpy(_numbers(table, name)), 0, order)
                    for name in table.column_names
                }
                for start in range(0, table.num_rows, request["batch_size"]):
                    end = start + request["batch_size"]
                    batch = {name: tensor[start:end] for name, tensor in tensors.items()}
                    yield len(next(iter(batch.values())))

    return batches


_LISTS = ("padded", "ragged", "string")


def _naive_lists(request: dict[str, Any], table: Any) -> Iterator[int]:
    """Batches of a shuffled row group whose rows differ in length."""
    import torch

    column = table.column(0).combine_chunks()
    for start in range(0, len(column), request["batch_size"]):
        rows = column.slice(start, request["batch_size"])
        batch: Any
        if request["table"] == "string":
            batch = rows.to_pylist()
        else:
            offsets = torch.from_numpy(rows.offsets.to_numpy().astype(np.int64))
            batch = torch.from_numpy(rows.flatten().to_numpy().copy())
            offsets = offsets - offsets[0]
            if request["table"] == "padded":
                padded = torch.zeros(len(rows), LIST_LENGTH, dtype=batch.dtype)
                padded[torch.arange(LIST_LENGTH) < offsets.diff()[:, None]] = batch
                batch = padded
        yield len(rows)


def _numbers(table: Any, name: str) -> Any:
    column = table.column(name).combine_chunks()
    kind = str(column.type)
    if kind.startswith("struct"):
        column = column.field("values")
        kind = str(column.type)
    if kind.startswith("list"):
        return column.flatten().to_numpy().reshape(len(column), -1)
    if kind == "binary":
        return np.stack([_pillow(value.as_py()) for value in column])
    return column.to_numpy()


def _hugging_face(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    """Documents packed by ``map``, as Hugging Face's own examples do it, and torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    if request["table"] != "packed":
        raise ImportError("measured for packing only")

    def pack(examples: dict[str, Any]) -> dict[str, Any]:
        tokens = list(itertools.chain(*examples["tokens"]))
        starts = range(0, len(tokens), SEQUENCE_LENGTH)
        return {"tokens": [tokens[start : start + SEQUENCE_LENGTH] for start in starts]}

    def collate(rows: list[dict[str, Any]]) -> Any:
        import torch

        return torch.nn.utils.rnn.pad_sequence([row["tokens"] for row in rows], batch_first=True)

    def batches() -> Iterator[int]:
        paths = sorted(map(str, Path(request["directory"]).glob("*.parquet")))
        with tempfile.TemporaryDirectory() as cache:
            documents = datasets.Dataset.from_parquet(paths, cache_dir=cache)
            documents = documents.shard(request["ranks"], request["rank"])
            packed = documents.map(pack, batched=True).with_format("torch")
            loader = DataLoader(packed, batch_size=16, shuffle=True, collate_fn=collate)
            for _ in range(request["epochs"]):
                for batch in loader:
                    yield batch.numel()

    return batches


def _decode_only(request: dict[str, Any]) -> Callable[[], Iterator[int]]:
    """Arrow's decoding, in as many threads, of which nothing is made; images by Pillow."""
    import pyarrow.parquet as pq

    def read(place: tuple[Path, int]) -> int:
        table = pq.ParquetFile(place[0]).read_row_group(place[1], use_threads=False)
        if request["table"] == "image":
            for value in table.column("image"):
                _pillow(value.as_py())
        if request["table"] == "packed":
            return sum(len(chunk.flatten()) for chunk in table.column("tokens").chunks)
        return int(table.num_rows)

    def batches() -> Iterator[int]:
        with ThreadPoolExecutor(request["workers_count"]) as pool:
            for _ in range(request["epochs"]):
                yield from pool.map(read, _shard(request))

    return batches


def _pillow(encoded: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


_READERS: dict[str, _Reader] = {
    "arrow": _arrow,
    "arrow_matrix": partial(_arrow, feature_cols=SCALARS),
    "petastorm_batched": partial(_petastorm, by_row=False),
    "petastorm_row": partial(_petastorm, by_row=True),
    "naive": _naive,
    "decode_only": _decode_only,
    "hugging_face": _hugging_face,
}


if __name__ == "__main__":
    _measure(json.loads(sys.argv[1]))
