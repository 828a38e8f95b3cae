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
from pyspark.ml.linalg import DenseVector, SparseVector

from sparkdl_runner.tensors.columns import Column, tensors
from sparkdl_runner.tensors.errors import BadColumnError
from sparkdl_runner.tensors.pandas_values import arrow_of


def by_arrow(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    # Sliced, as no batch begins where its memory does.
    array = pa.array([*rows[:1], *rows], kind).slice(1)
    return tensors(column, array)


def by_pandas(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    return tensors(column, arrow_of(column, pa.array(rows, kind).to_pandas()))


def by_spark(column: Column, rows: list, kind: pa.DataType) -> dict[str, torch.Tensor]:
    """As Spark's Python worker is given them: by pandas, of an Arrow array in its order."""
    series = pa.array([*rows[:1], *rows], kind).slice(1).to_pandas()
    return tensors(column, arrow_of(column, series))


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


def by_series(column: Column, series: pd.Series) -> list:
    return tensors(column, arrow_of(column, series))["x"].tolist()


def test_lists_of_python_are_taken_as_a_server_has_them():
    column = Column(name="x", kind="list", shape=(2,), nulls="fill", fill_value=5)
    assert by_series(column, pd.Series([[1, None], None, [3.5, 4]])) == [[1, 5], [5, 5], [3.5, 4]]
    for bad in (pd.Series([1.0, 2.0]), pd.Series(["text", "more"]), pd.Series([[1], ["a"]])):
        with pytest.raises(BadColumnError, match=r"'x' is of type"):
            by_series(column, bad)
    with pytest.raises(BadColumnError, match=r"'x' is of type string and holds 'text'"):
        by_series(Column(name="x"), pd.Series(["text"]))


def test_rows_of_pandas_are_taken_as_people_have_them():
    column = Column(name="x", kind="list", shape=(2,), nulls="nan")
    vectors = [DenseVector([1, 2]), SparseVector(2, {1: 3.0})]
    assert by_series(column, pd.Series(vectors)) == [[1, 2], [0, 3]]
    assert by_series(column, pd.Series([np.array([1, 2]), np.array([3, 4])])[[1, 0]]) == [
        [3, 4],
        [1, 2],
    ]
    missing = tensors(column, arrow_of(column, pd.Series([np.ones(2), np.nan, pd.NA])))["x"]
    assert missing.isnan().tolist() == [[False] * 2, [True] * 2, [True] * 2]
    matrices = Column(name="x", kind="list", shape=(2, None), dtype="int64")
    assert by_series(matrices, pd.Series([np.eye(2), np.ones((2, 2))])) == [
        [[1, 0], [0, 1]],
        [[1, 1], [1, 1]],
    ]
    whole = Column(name="x", dtype="int64", nulls="fill", fill_value=7)
    large = 2**60 + 1
    for series in (pd.Series([large, None], dtype="Int64"), pd.Series([large, None], dtype=object)):
        assert by_series(whole, series) == [large, 7]
    assert by_series(whole, pd.Series(pd.Categorical([5, 4]))) == [5, 4]
    assert by_series(whole, pd.Series([1.0, np.nan])) == [1, 7]


@pytest.mark.parametrize(
    ("dtype", "value", "reason"), [("int8", 300, "300"), ("int64", 2.5, "2.5"), ("bool", "a", "a")]
)
def test_a_number_is_rounded_to_fractions_alone(dtype, value, reason):
    assert by_series(Column(name="x"), pd.Series([2**24 + 1, 0])) == [2.0**24, 0]
    with pytest.raises(BadColumnError, match=rf"'x' .*{reason}.*the model takes .* there\.$"):
        by_series(Column(name="x", dtype=dtype), pd.Series([1, value], dtype=type(value)))


@WAYS
def test_a_null_is_refused_where_the_type_does_not_hold_what_it_would_become(way):
    for column, reason in (
        (Column(name="x", dtype="int64", nulls="nan"), "int64 does not hold NaN"),
        (Column(name="x", dtype="int64", nulls="fill", fill_value=0.5), "int64 does not hold 0.5"),
        (Column(name="x", dtype="bool", nulls="fill", fill_value=2), "bool does not hold 2"),
    ):
        is_bool = column.dtype == "bool"
        one, kind = (True, pa.bool_()) if is_bool else (1, pa.int64())
        with pytest.raises(BadColumnError, match=rf"'x' holds a null.*{reason}\. Drop"):
            way(column, [one, None], kind)
    padded = Column(name="x", kind="list", shape=(None,), pad=2, nulls="mask")
    with pytest.raises(BadColumnError, match=r"nulls='mask' and with pad=, beside which there is"):
        way(padded, [[1.0], None], LISTS)
    assert set(way(padded, [[1.0], [2.0]], LISTS)) == {"x", "x_length"}


def test_a_column_survives_json():
    column = Column(name="x", kind="image", dtype="uint8", image=(2, 3, "L"), nulls="mask")
    assert Column.from_json(column.to_json()) == column
