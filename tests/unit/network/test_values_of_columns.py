"""Columns of pandas and of Arrow become the tensors that the training's loader would make."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sparkdl_runner.network import arrow_values, pandas_values
from sparkdl_runner.network.columns import BadColumnError, Column, Values, tensors


def by_arrow(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    # Sliced, as no batch begins where its memory does.
    array = pa.array([*rows[:1], *rows], kind).slice(1)
    return tensors(column, arrow_values.values_of(column, array))


def by_pandas(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    return tensors(column, pandas_values.values_of(column, pa.array(rows, kind).to_pandas()))


def by_spark(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    """As Spark's Python worker is given them: by pandas, of an Arrow array in its order."""
    series = pa.array([*rows[:1], *rows], kind).slice(1).to_pandas()
    return tensors(column, pandas_values.values_of(column, series, is_arrows=True))


WAYS = pytest.mark.parametrize("way", [by_arrow, by_pandas, by_spark])
LISTS = pa.list_(pa.float32())
NUMBERS = st.floats(-9, 9, width=32)


@WAYS
@given(rows=st.lists(st.lists(NUMBERS, max_size=6), max_size=5), pad=st.integers(1, 7))
def test_lists_are_cut_or_filled_up_and_their_lengths_known(way, rows, pad):
    column = Column(name="x", kind="list", shape=(None,), pad=pad)
    made = way(column, rows, LISTS)
    assert made["x"].shape == (len(rows), pad)
    assert made["x_length"].tolist() == [min(len(row), pad) for row in rows]
    for row, found in zip(rows, made["x"].tolist(), strict=True):
        assert found == (row + [0.0] * pad)[:pad]


@WAYS
@given(
    rows=st.lists(
        st.one_of(st.none(), st.lists(st.one_of(st.none(), NUMBERS), min_size=3, max_size=3)),
        max_size=5,
    )
)
def test_nulls_in_lists_become_what_the_user_says(way, rows):
    made = way(Column(name="x", kind="list", shape=(3,), nulls="fill", fill_value=7), rows, LISTS)
    expected = [
        [7.0] * 3 if row is None else [7.0 if one is None else one for one in row] for row in rows
    ]
    assert made["x"].tolist() == expected
    masked = way(Column(name="x", kind="list", shape=(3,), nulls="mask"), rows, LISTS)
    assert masked["x_mask"].tolist() == [
        [False] * 3 if row is None else [one is not None for one in row] for row in rows
    ]
    if None in rows:
        with pytest.raises(BadColumnError, match=r"The column 'x' holds a null"):
            way(Column(name="x", kind="list", shape=(3,)), rows, LISTS)


@WAYS
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float32", "float64"])
def test_numbers_keep_their_type_and_nulls_are_seen(way, dtype):
    kind = {"bool": pa.bool_()}.get(dtype) or pa.type_for_alias(dtype)
    rows = [1, 0, 1]
    rows = [bool(one) for one in rows] if dtype == "bool" else rows
    made = way(Column(name="x", dtype=dtype), rows, kind)["x"]
    assert (str(made.dtype), made.tolist()) == (f"torch.{dtype}", rows)
    holed = [rows[0], None, rows[2]]
    filled = way(Column(name="x", dtype=dtype, nulls="fill", fill_value=0), holed, kind)["x"]
    assert filled.tolist() == rows
    if way is by_arrow or dtype.startswith("int"):
        with pytest.raises(BadColumnError, match=r"The column 'x' holds a null"):
            way(Column(name="x", dtype=dtype), holed, kind)


@WAYS
def test_nested_lists_and_whole_numbers(way):
    rows = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 1, 1]]]
    kind = pa.list_(pa.list_(pa.int64()))
    column = Column(name="x", kind="list", dtype="int64", shape=(2, 3))
    assert way(column, rows, kind)["x"].tolist() == rows
    padded = way(Column(name="x", kind="list", dtype="int64", shape=(None, 3), pad=3), rows, kind)
    assert padded["x"].shape == (2, 3, 3)
    assert padded["x_length"].tolist() == [2, 2]
    assert way(column, [], kind)["x"].shape == (0, 2, 3)


@WAYS
def test_a_row_of_another_length_is_told_with_both_lengths(way):
    rows = [[1.0, 2.0], [1.0]]
    with pytest.raises(BadColumnError, match=r"'x' has a row .* length 1, and the model takes 2"):
        way(Column(name="x", kind="list", shape=(2,)), rows, LISTS)
    with pytest.raises(BadColumnError, match=r"length 1, and others have 2"):
        way(Column(name="x", kind="list", shape=(None,)), rows, LISTS)


@WAYS
def test_images_are_decoded_and_resized(way):
    stream = io.BytesIO()
    Image.new("RGB", (8, 4), (1, 2, 3)).save(stream, format="PNG")
    column = Column(name="x", kind="image", dtype="uint8", image=(2, 3, "RGB"), nulls="fill")
    made = way(column, [stream.getvalue(), None], pa.binary())["x"]
    assert made.shape == (2, 2, 3, 3)
    assert made[0, 0, 0].tolist() == [1, 2, 3]
    assert not made[1].any()
    with pytest.raises(ValueError, match=r"'x' has a row that is no image"):
        way(column, [b"no image"], pa.binary())


def test_rows_of_arrows_need_no_copy_and_others_keep_their_order():
    column = Column(name="x", kind="list", shape=(2,), dtype="int64")
    series = pa.array([[1, 2], [3, 4], [5, 6], [7, 8]]).to_pandas()
    whole = pandas_values.values_of(column, series, is_arrows=True).flat
    assert np.shares_memory(whole, series[0])
    assert whole.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    mixed = series[[0, 2, 1, 3]]
    assert pandas_values.values_of(column, mixed).flat.tolist() == [1, 2, 5, 6, 3, 4, 7, 8]
    # A part of an array, and rows of two arrays, as Arrow has none.
    for part in (series[1:3], pd.concat([series[:1], series[1:2].map(np.copy)])):
        expected = np.concatenate(list(part)).tolist()
        assert pandas_values.values_of(column, part, is_arrows=True).flat.tolist() == expected


def test_lists_of_python_are_taken_as_a_server_has_them():
    column = Column(name="x", kind="list", shape=(2,), nulls="fill", fill_value=5)
    series = pd.Series([[1, None], None, [3.5, 4]])
    made = tensors(column, pandas_values.values_of(column, series))["x"]
    assert made.tolist() == [[1, 5], [5, 5], [3.5, 4]]
    for bad in (pd.Series([1.0, 2.0]), pd.Series(["text", "more"])):
        with pytest.raises(BadColumnError, match=r"'x'"):
            tensors(column, pandas_values.values_of(column, bad))
    with pytest.raises(BadColumnError, match=r"'x' is of type object and holds 'text'"):
        pandas_values.values_of(Column(name="x"), pd.Series(["text"]))


def test_a_column_survives_json():
    column = Column(name="x", kind="image", dtype="uint8", image=(2, 3, "L"), nulls="mask")
    assert Column.from_json(column.to_json()) == column
    assert Values(flat=np.ones(1)).valid is None
