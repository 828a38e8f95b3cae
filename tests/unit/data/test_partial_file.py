"""Extents of a file, in memory or on the disk, are read by Arrow as the file would be."""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner.base.filesystem import is_far
from sparkdl_runner.data.remote.partial_file import in_memory, on_disk


def open_extents(folder):
    """The numbers of the open files in a folder."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number for number, path in found.items() if path.startswith(str(folder))}


@pytest.mark.parametrize("buffer_size", [0, 4096])
@pytest.mark.parametrize("make", [in_memory, on_disk])
def test_a_row_group_is_read_from_its_extents(tmp_path, make, buffer_size):
    folder = [tmp_path] if make is on_disk else []
    table = pa.table({"a": range(3000), "b": [f"row {i}" for i in range(3000)]})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=1000)
    content = np.frombuffer((tmp_path / "whole.parquet").read_bytes(), dtype=np.uint8)
    kept = weakref.ref(content)
    size, metadata = len(content), pq.read_metadata(tmp_path / "whole.parquet")
    pieces = []
    for chunk in (metadata.row_group(1).column(leaf) for leaf in range(2)):
        start = min(chunk.dictionary_page_offset or 1 << 60, chunk.data_page_offset)
        pieces.append((start, memoryview(content)[start : start + chunk.total_compressed_size]))
    del content
    others = open_extents(tmp_path)  # Of readers that earlier tests left to the garbage collector.
    stream = make(size, pieces, *folder)
    del pieces
    parquet = pq.ParquetFile(stream, metadata=metadata, buffer_size=buffer_size)
    del stream  # The ParquetFile keeps it open.
    assert open_extents(tmp_path) - others or kept() is not None
    assert parquet.read_row_group(1).equals(table.slice(1000, 1000))
    del parquet
    end = time.monotonic() + 120  # Arrow's own thread may be the last to let it go.
    while (open_extents(tmp_path) - others or kept() is not None) and time.monotonic() < end:
        time.sleep(0.01)
    assert not open_extents(tmp_path) - others
    assert kept() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.parquet"]


@pytest.mark.parametrize("make", [in_memory, on_disk])
def test_zeros_are_where_no_piece_is(tmp_path, make):
    folder = [tmp_path] if make is on_disk else []
    with make(12, [(2, memoryview(b"abc")), (5, memoryview(b"de"))], *folder) as file:
        assert file.size() == 12
        assert file.read_at(2, 3) == b"bc"
        assert file.read_at(12, 0) == b"\0\0abcde" + bytes(5)
        assert file.read_at(9, 8) == bytes(4)
        assert file.read_at(1, 12) == b""


def test_mounts_of_remote_storage_are_far(tmp_path):
    assert is_far("/dbfs/tmp/cache")
    assert is_far("/Volumes/main/default/cache")
    assert not is_far(str(tmp_path))
