"""Rows that differ in length, from files to batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_sets import load, one

from sparkdl_runner.data.decode import rows as kept
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.arrays import leaf_of
from sparkdl_runner.tensors.ragged import keep_numbers, padded, ragged

LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=5), max_size=9)
TEXTS = st.lists(st.none() | st.text(max_size=4), max_size=9)


def no_utf8(texts: list[bytes]) -> pa.Array:
    blobs = pa.array(texts)
    return pa.Array.from_buffers(pa.string(), len(texts), blobs.buffers())


@given(LISTS, st.integers(0, 3), st.integers(1, 6))
def test_lists_are_kept_as_bytes_and_come_back(lists: list[Any], first: int, length: int) -> None:
    leaf = leaf_of(pa.int32())
    assert not isinstance(leaf, str)
    array = pa.array(lists, pa.list_(pa.int32())).slice(first)
    expected = [[7 if n is None else n for n in row or []] for row in lists[first:]]
    rows = keep_numbers(array, (), leaf, 7)
    offsets, numbers = ragged(rows, (), leaf.dtype)
    found = [numbers[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == expected
    filled, sizes = padded(rows, length, (), leaf.dtype, -1)
    assert filled.tolist() == [[*row, *[-1] * length][:length] for row in expected]
    assert sizes.tolist() == [min(length, len(row)) for row in expected]


@given(TEXTS, st.integers(0, 3))
def test_texts_and_bytes_come_back(texts: list[str | None], first: int) -> None:
    expected = [text or "" for text in texts[first:]]
    assert kept.words(kept.keep_words(pa.array(texts, pa.string()).slice(first))) == expected
    blobs = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    found = kept.words(kept.keep_words(blobs.slice(first)))
    assert found == [text.encode() for text in expected]
    # Arrow 14 may crash as it casts a slice of these. Files have none.
    equal = [None if text is None else b"abcd" for text in texts]
    found = kept.words(kept.keep_words(pa.array(equal, pa.binary(4))))
    assert found == [value or b"" for value in equal]


@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_no_utf8_is_named(tmp_path: Path, nested: bool) -> None:
    texts = no_utf8([b"fine", b"fine too", b"first", b"second", b"caf\xe9 au lait", b"end"])
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(np.arange(7, dtype=np.int32)), texts)
    manifest = one(tmp_path, pa.table({"text": texts, "n": range(6)}))
    with (
        load(tmp_path, manifest, batch_size=2) as loader,
        pytest.raises(
            DatasetError,
            match=r"part-00000\.parquet, row group 1, column 'text', row 1: it holds text that is "
            r"no UTF-8 \(byte 0xe9 at position 3\)\. .*ISO-8859-1.*columns=",
        ),
    ):
        list(loader)
    with load(tmp_path, manifest, batch_size=2, columns=["n"]) as loader:
        assert len(list(loader)) == 3


def test_rows_that_fill_up_a_batch_are_empty(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c"], "words": [["d"], ["e"], ["f"]], "n": [[1], [2], []]})
    manifest = one(tmp_path, table)
    options: dict[str, Any] = {"tail": "pad", "shuffle": False, "ragged": ["n"]}
    with load(tmp_path, manifest, batch_size=4, **options) as loader:
        (batch,) = loader
    assert batch["text"] == ["a", "b", "c", ""]
    assert batch["words"] == [["d"], ["e"], ["f"], []]
    assert batch["n_offsets"].tolist() == [0, 1, 2, 2, 2]
    batch["n"][0] = 5  # torch would warn of memory that must not be written
