"""A function of each row, in threads: its results become the batch."""

from __future__ import annotations

import io
import math
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from parquet_sets import load, numbered, one

from sparkdl_runner.data.batches.sample_threads import SampleThreads
from sparkdl_runner.data.errors import DatasetError


def test_results_become_tensors_and_lists(tmp_path: Path) -> None:
    table = numbered(20).append_column("text", pa.array([f"row {n}" for n in range(20)]))
    table = table.append_column("many", pa.array([list(range(n % 4)) for n in range(20)]))
    threads = set()

    def change(row: dict[str, Any]) -> dict[str, Any]:
        threads.add(threading.current_thread().name.partition("_")[0])
        return {
            "id": row["id"],
            "pair": np.array([row["value"], row["vector"].sum()], dtype=np.float32),
            "tensor": torch.full((2,), int(row["id"])),
            "text": row["text"].upper(),
            "many": row["many"].tolist(),
            "total": int(row["many"].sum()),
        }

    manifest = one(tmp_path, table, 6)
    with load(
        tmp_path,
        manifest,
        batch_size=8,
        tail="uneven",
        sample_transform=change,
        ragged=["many"],
        transform=lambda batch: {**batch, "twice": 2 * batch["id"]},
    ) as loader:
        batches = list(loader)
    assert [len(batch["text"]) for batch in batches] == [8, 8, 4]
    assert sorted(row for batch in batches for row in batch["id"].tolist()) == list(range(20))
    for batch in batches:
        ids = batch["id"].tolist()
        assert batch["pair"].tolist() == [[2 * n, 3 * n + 3] for n in ids]
        assert batch["tensor"].tolist() == [[n, n] for n in ids]
        assert batch["text"] == [f"ROW {n}" for n in ids]
        assert batch["many"] == [list(range(n % 4)) for n in ids]
        assert batch["total"].tolist() == [sum(range(n % 4)) for n in ids]
        assert (batch["twice"] == 2 * batch["id"]).all()
    assert "sparkdl-samples" in threads


def draws(directory: Path, manifest: Any, shards: int, **more: Any) -> dict[tuple[int, int], float]:
    """By epoch and row, the first random number that its function was given."""
    found: dict[tuple[int, int], float] = {}
    for shard in range(shards):
        with load(
            directory,
            manifest,
            global_batch_size=8,
            lanes=4,
            cur_shard=shard,
            shard_count=shards,
            tail="uneven",
            sample_transform=lambda row, random: {"id": row["id"], "draw": random.random()},
            **more,
        ) as loader:
            for epoch in range(2):
                loader.set_epoch(epoch)
                for batch in loader:
                    for row, draw in zip(batch["id"].tolist(), batch["draw"], strict=True):
                        found[epoch, row] = float(draw)
    return found


def test_random_numbers_are_equal_at_any_number_of_ranks_and_of_threads(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(45), 4)
    alone = draws(tmp_path, manifest, 1, workers_count=1)
    assert sorted(alone) == [(epoch, row) for epoch in range(2) for row in range(45)]
    assert len(set(alone.values())) == 90
    for shards in (2, 4):
        assert draws(tmp_path, manifest, shards, workers_count=3) == alone
    assert draws(tmp_path, manifest, 1, seed=1) != alone


def test_rows_that_fill_up_are_not_given_to_the_function(tmp_path: Path) -> None:
    manifest = one(tmp_path, pa.table({"id": np.arange(1, 11)}), 4)

    def invert(row: dict[str, Any]) -> dict[str, Any]:
        return {"inverse": np.float32(1 / row["id"]), "text": str(row["id"])}

    with load(
        tmp_path, manifest, batch_size=4, tail="pad", shuffle=False, sample_transform=invert
    ) as loader:
        last = list(loader)[-1]
    assert last["row_mask"].tolist() == [True, True, False, False]
    assert last["inverse"].tolist() == [np.float32(1 / 9), np.float32(1 / 10), 0, 0]
    assert last["text"] == ["9", "10", "", ""]


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (3, TypeError, "sample_transform is 3; expected a function of a row"),
        (lambda row: row["id"], TypeError, "returned a int64; expected a dict"),
        (lambda row: {"a": np.zeros(int(row["id"]))}, DatasetError, r"float64 \[\d\] for 'a'"),
        (lambda row: {"a": row["id"] if row["id"] % 2 else 0.5}, DatasetError, "one type and sh"),
        (lambda row: {"a" if row["id"] % 2 else "b": 1}, DatasetError, "same entries for each"),
        (lambda row: math.sqrt(-1), ValueError, "math domain error"),
    ],
)
def test_a_function_that_does_not_fit(
    tmp_path: Path, function: Any, error: type[Exception], sentence: str
) -> None:
    manifest = one(tmp_path, numbered(12), 4)
    with (
        pytest.raises(error, match=sentence),
        load(tmp_path, manifest, batch_size=6, sample_transform=function) as loader,
    ):
        list(loader)


def test_sound_of_different_lengths(tmp_path: Path) -> None:
    """WAV files, decoded by the standard library, and the same samples as lists of numbers."""
    sounds = [np.arange(100 * length, dtype=np.int16) for length in range(1, 9)]

    def as_wav(samples: Any) -> bytes:
        stream = io.BytesIO()
        with wave.open(stream, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(samples.tobytes())
        return stream.getvalue()

    def decode(row: dict[str, Any]) -> dict[str, Any]:
        with wave.open(io.BytesIO(row["wav"])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        fixed = np.zeros(500, dtype=np.float32)
        length = min(len(samples), 500)
        fixed[:length] = samples[:length] / 32768
        return {"sound": fixed, "length": length, "pcm": row["pcm"]}

    table = pa.table(
        {"wav": [as_wav(samples) for samples in sounds], "pcm": [s.tolist() for s in sounds]},
        schema=pa.schema({"wav": pa.binary(), "pcm": pa.list_(pa.int16())}),
    )
    manifest = one(tmp_path, table, 3)
    with load(
        tmp_path, manifest, batch_size=4, pad={"pcm": 500}, sample_transform=decode
    ) as loader:
        batches = list(loader)
    assert sorted(n for batch in batches for n in batch["length"].tolist()) == [
        *(100, 200, 300, 400),
        *[500] * 4,
    ]
    for batch in batches:
        assert (batch["sound"] * 32768 == batch["pcm"]).all()


def test_all_threads_work_on_a_chunk_at_once() -> None:
    threads, there = SampleThreads(3), threading.Barrier(3, timeout=120)

    def work(row: int) -> int:
        if row in (0, 20, 39):
            there.wait()
        return -row

    try:
        assert threads.map(work, 40) == [-row for row in range(40)]
        assert threads.map(work, 0) == []
    finally:
        threads.close()
