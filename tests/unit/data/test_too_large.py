"""Lists of texts that are larger than Arrow decodes are refused in a sentence, with their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.batches.columns import planner
from sparkdl_runner.data.dataset import decoded_sizes
from sparkdl_runner.data.dataset.view.view import Projection
from sparkdl_runner.data.parquet import scan

ROWS = pa.table({"id": range(4), "x": [["ab" * 30] * (i + 1) for i in range(4)]})
SENTENCE = r"column 'x': the texts or bytes in the lists of one row take more than 2,147,483,647 "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=2)
    return tmp_path


def cannot(*_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
    """Says what Arrow says of such a row."""
    raise pa.ArrowNotImplementedError(
        "Nested data conversions not implemented for chunked array outputs"
    )


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_it_is_known_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_dictionary: bool
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=2, use_dictionary=use_dictionary)
    monkeypatch.setattr(scan, "rows_of_batch", cannot)
    monkeypatch.setattr(decoded_sizes, "MOST_BYTES", 190)
    with pytest.raises(DatasetError, match=rf"a\.parquet, row group 1, {SENTENCE}"):
        make_spark_converter(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(decoded_sizes, "MOST_BYTES", 190)
    assert len(make_spark_converter(tmp_path, columns=["id"])) == 4


def test_arrow_tells_while_a_folder_is_described(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "rows_of_batch", cannot)
    with pytest.raises(DatasetError, match=rf"a\.parquet, row group 0, {SENTENCE}"):
        make_spark_converter(folder)


def test_arrow_tells_while_a_table_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path, ROWS)
    monkeypatch.setattr(Projection, "batches", cannot)
    with pytest.raises(DatasetError, match=rf"\.parquet, row group 0, {SENTENCE}"):
        make_spark_converter(tmp_path)
    assert len(make_spark_converter(tmp_path, columns=["id"])) == 4


def test_a_loader_refuses_what_is_known_and_tells_what_it_meets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = make_spark_converter(folder)
    with monkeypatch.context() as patched:
        patched.setattr(planner, "MOST_BYTES", 200)
        with pytest.raises(DatasetError, match=SENTENCE):
            converter.make_torch_dataloader(2).__enter__()
        with converter.make_torch_dataloader(2, columns=["id"]):
            pass
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", cannot)
    with (
        converter.make_torch_dataloader(2, num_epochs=1) as loader,
        pytest.raises(DatasetError, match=rf"a\.parquet, row group \d, {SENTENCE}"),
    ):
        list(loader)
