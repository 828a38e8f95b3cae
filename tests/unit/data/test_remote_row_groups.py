"""How often a storage that is far away is asked, by the loaders of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pytest
from parquet_sets import load, write_groups

from sparkdl_runner.data.loader import ArrowLoader

ROWS = 200_000  # of a row group


class _CountedFile:
    """What ``pyarrow.PythonFile`` needs of an open file."""

    closed = False

    def __init__(self, file: pa.NativeFile, counts: Counter[str]) -> None:
        self._file, self._counts = file, counts
        self.seek, self.tell, self.size, self.close = file.seek, file.tell, file.size, file.close

    def read(self, size: int) -> bytes:
        self._counts["reads"] += 1
        content: bytes = self._file.read(size)
        self._counts["bytes"] += len(content)
        return content


class _FarHandler(fs.FSSpecHandler):
    """The local disk as a storage that the kernel does not know; counts what is read there."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._local = fs.LocalFileSystem()

    def get_file_info(self, paths):
        return self._local.get_file_info(paths)

    def open_input_file(self, path):
        self.counts["opens"] += 1
        return pa.PythonFile(_CountedFile(self._local.open_input_file(path), self.counts), "r")


@pytest.fixture
def far() -> _FarHandler:
    return _FarHandler()


def rows(loader: ArrowLoader) -> Iterator[int]:
    for batch in loader:
        yield from batch["id"].tolist()


@pytest.mark.parametrize("groups", [1, 2])
def test_lanes_of_a_rank_that_share_a_row_group_fetch_it_once(tmp_path, far, groups):
    table = pa.table({"id": np.arange(groups * ROWS)})
    manifest = write_groups(tmp_path, table, [[ROWS] * groups])
    size = manifest.files[0].size_bytes
    # Blocks are so small that each lane reads its part of a row group a few rows at a time.
    arguments = {
        "batch_size": 1000,
        "lanes": 8,
        "num_epochs": 1,
        "memory_budget_bytes": 40 << 20,
        "cache_type": "null",
        "device": "numpy",
    }
    with load(tmp_path, manifest, **arguments) as loader:
        expected = list(rows(loader))
    with ArrowLoader(manifest, fs.PyFileSystem(far), str(tmp_path), **arguments) as loader:
        assert list(rows(loader)) == expected
    assert far.counts["reads"] <= 1 + groups, "the footer, and each row group"
    assert far.counts["bytes"] <= 1.1 * size + (64 << 10)
