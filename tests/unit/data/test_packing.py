"""Packed batches, and those that are filled up to their longest row."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_sets import load, one

from sparkdl_runner.data.decode.packing import best_fit, pack
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.arrays import Leaf
from sparkdl_runner.tensors.ragged import keep_numbers

INT32 = Leaf(dtype=np.dtype(np.int32))


@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=12), st.integers(1, 6))
def test_every_number_is_packed_once_in_its_document(rows: list[list[int]], length: int) -> None:
    kept = keep_numbers(pa.array(rows, pa.list_(pa.int32())), (), INT32, None)
    packed = pack(kept, length, INT32.dtype, -1)
    values, ids, positions = (packed[n] for n in ("", "_document_ids", "_positions"))
    assert values.shape == ids.shape == positions.shape
    assert values.shape[1] == length
    assert len(values) >= 1
    assert ((ids == 0) == (values == -1)).all()
    flat = (values.ravel(), ids.ravel(), positions.ravel())
    found: dict[int, list[list[int]]] = {}
    for begin, end in pairwise(packed["_cu_seqlens"].tolist()):
        assert begin // length == (end - 1) // length, "a piece lies in one sequence"
        numbers, (document, *others), places = (part[begin:end].tolist() for part in flat)
        assert set(others) <= {document}
        assert places == (list(range(end - begin)) if document else [0] * (end - begin))
        if document:
            found.setdefault(document, []).append(numbers)
    assert packed["_cu_seqlens"][-1] == values.size
    for number, row in enumerate(rows, 1):
        expected = [row[at : at + length] for at in range(0, len(row), length)]
        assert Counter(map(tuple, found.get(number, []))) == Counter(map(tuple, expected))


@given(st.lists(st.integers(1, 50), max_size=60))
def test_no_two_sequences_would_fit_into_one(sizes: list[int]) -> None:
    sequence = best_fit(np.array(sizes, dtype=np.int64), 50)
    used = sorted(np.bincount(sequence, weights=sizes).tolist()) if sizes else []
    assert all(0 < one <= 50 for one in used)
    assert sum(used[:2]) > 50 or len(used) < 2


def lists(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    tokens = [[row] * int(random.integers(0, 12)) for row in range(rows)]
    return pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "id": range(rows)})


def test_documents_are_those_of_the_batch_at_any_world_size_and_after_a_resume(
    tmp_path: Path,
) -> None:
    manifest = one(tmp_path, lists(96), 8)

    def batches(rank: int, ranks: int, state: Any = None) -> list[tuple[dict[str, Any], Any]]:
        with load(
            tmp_path,
            manifest,
            global_batch_size=16,
            pack={"tokens": 16},
            cur_shard=rank,
            shard_count=ranks,
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            return [(batch, loader.state_dict()) for batch in loader]

    whole = batches(0, 1)
    parts = [batches(rank, 2) for rank in range(2)]
    assert len(whole) == len(parts[0]) == len(parts[1]) == 6
    for step, (batch, _) in enumerate(whole):
        # A document's numbers are its row's id, so that each can be told.
        real = batch["tokens_document_ids"] > 0
        rows = batch["id"][batch["tokens_document_ids"][real].long() - 1]
        assert rows.tolist() == batch["tokens"][real].tolist()
        both = [part[step][0] for part in parts]
        assert sorted(batch["id"].tolist()) == sorted(i for b in both for i in b["id"].tolist())
    resumed = batches(0, 1, whole[2][1])
    for (expected, _), (batch, _) in zip(whole[3:], resumed, strict=True):
        for name, values in expected.items():
            assert values.tolist() == batch[name].tolist(), name


def test_rows_are_filled_up_to_the_longest_of_their_batch(tmp_path: Path) -> None:
    table = pa.table({"x": [[1], [2, 3, 4], [], [5], [6, 7, 8, 9, 10]]})
    manifest = one(tmp_path, table)
    options: dict[str, Any] = {"batch_size": 2, "shuffle": False, "tail": "uneven"}
    with load(tmp_path, manifest, pad="longest", **options) as loader:
        batches = [batch["x"].tolist() for batch in loader]
    assert batches == [[[1, 0, 0], [2, 3, 4]], [[0], [5]], [[6, 7, 8, 9, 10]]]
    with load(
        tmp_path, manifest, pad={"x": "longest"}, pad_multiple=4, pad_value=-1, **options
    ) as loader:
        found = [(tuple(batch["x"].shape), batch["x_length"].tolist()) for batch in loader]
    assert found == [((2, 4), [1, 3]), ((2, 4), [0, 1]), ((1, 8), [5])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": {"n": 4}, "columns": ["n"]}, "pack names 'n'"),
        ({"pack": {"words": 4}, "columns": ["words"]}, "names 'words'.*lists of numbers"),
        ({"pack": {"token": 4}}, "pack names 'token'.*Did you mean 'tokens'"),
        ({"pack": {"tokens": 0}}, "pack for column 'tokens' is 0; expected 1 or more"),
        ({"pad": "most", "columns": ["tokens"]}, "pad for column 'tokens' is 'most'.*longest"),
        ({"pack": {"tokens": 4}, "pad_value": 0.5}, "pad_value is 0.5"),
        ({"pack": {"tokens": 4}, "sample_transform": dict}, "'tokens' is packed"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    table = pa.table({"tokens": [[1], [2, 3]], "n": [1, 2], "words": [["a"], ["b", "c"]]})
    with pytest.raises((ValueError, DatasetError), match=message):
        load(tmp_path, one(tmp_path, table), batch_size=1, **options)
