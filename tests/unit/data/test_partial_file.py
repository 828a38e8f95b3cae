"""Pieces of a file, in memory or on the disk, are read by Arrow as the file would be."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner.data.read.partial_file import PartialFile
from sparkdl_runner.filesystem import is_far


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_row_group_is_read_from_its_pieces(tmp_path, on_disk):
    table = pa.table({"a": range(3000), "b": [f"row {i}" for i in range(3000)]})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=1000)
    content = (tmp_path / "whole.parquet").read_bytes()
    metadata = pq.read_metadata(tmp_path / "whole.parquet")
    chunks = [metadata.row_group(1).column(leaf) for leaf in range(2)]
    pieces = []
    for chunk in chunks:
        start = min(chunk.dictionary_page_offset or 1 << 60, chunk.data_page_offset)
        pieces.append((start, memoryview(content)[start : start + chunk.total_compressed_size]))
    file = PartialFile(len(content), pieces)
    if on_disk:
        assert file.move_to_disk(tmp_path)
        assert file.held_bytes == 0
    parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"), metadata=metadata, buffer_size=4096)
    assert parquet.read_row_group(1).equals(table.slice(1000, 1000))
    assert not file.move_to_disk(tmp_path / "nothing"), "there is no such folder"
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.parquet"]


def test_mounts_of_remote_storage_are_far(tmp_path):
    assert is_far("/dbfs/tmp/cache")
    assert is_far("/Volumes/main/default/cache")
    assert not is_far(str(tmp_path))
