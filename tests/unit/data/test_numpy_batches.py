"""Batches of NumPy arrays: taken by other libraries without a copy, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from parquet_sets import load, numbered, one

from sparkdl_runner.data.batches.memory import ArrayMemory


def test_batches_are_taken_without_a_copy_and_stay_as_they_were(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(256, width=16), 64)
    with load(tmp_path, manifest, batch_size=64, device="numpy") as loader:
        kept = []
        for batch in [*loader, *loader]:
            for array in batch.values():
                # JAX, too, takes what begins at a multiple of 64 bytes as it is.
                assert array.ctypes.data % 64 == 0
                taken = torch.from_dlpack(array)
                assert taken.data_ptr() == np.from_dlpack(array).ctypes.data == array.ctypes.data
                kept.append((taken, array.copy()))
    assert all(np.array_equal(taken.numpy(), before) for taken, before in kept)


def test_memory_is_used_again_once_no_view_of_it_is_left() -> None:
    memory, shape, dtype = ArrayMemory(), (4, 2), np.dtype(np.float32)
    first = memory.empty("x", shape, dtype)
    address, view = first.ctypes.data, torch.from_numpy(first).split(1)[3].numpy()
    first[:] = 1
    del first
    kept = memory.empty("x", shape, dtype)
    kept[:] = 2
    assert kept.ctypes.data != address
    assert view.tolist() == [[1, 1]]
    del view
    assert memory.empty("x", (3, 2), dtype).ctypes.data == address
    assert memory.empty("x", (99, 2), dtype).shape == (99, 2)
    assert kept.tolist() == [[2, 2]] * 4
