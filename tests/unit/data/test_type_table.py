"""The table of types in docs/data.md is what conversion and loader do."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from parquet_sets import load, one
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t
from test_types import IMAGE

from sparkdl_runner.data.convert.plan import check_columns, is_vector, target_type
from sparkdl_runner.data.errors import DatasetError

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
HEAD = "| Spark | batch | |\n|---|---|---|\n"

DAY = datetime.date(1970, 1, 3)
TIME = datetime.datetime(1970, 1, 1, 0, 0, 1)
PICTURE = {"origin": "", "height": 4, "width": 2, "nChannels": 3, "mode": 16, "data": bytes(24)}
PAIR = t.StructType([t.StructField("a", t.IntegerType())])

ARROW = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", "UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
    t.StringType: pa.string(),
    t.BinaryType: pa.binary(),
}
"""As Spark writes them."""

ROWS: list[tuple[t.DataType | pa.DataType, list[Any], str, dict[str, Any], str]] = [
    (t.BooleanType(), [True, False], "", {}, ""),
    (t.ByteType(), [1, 2], "", {}, ""),
    (t.ShortType(), [1, 2], "", {}, ""),
    (t.IntegerType(), [1, 2], "", {}, ""),
    (t.LongType(), [1, 2], "", {}, ""),
    (t.FloatType(), [1.0, 2.0], "", {}, ""),
    (t.DoubleType(), [1.0, 2.0], "", {}, "`dtype=None` when converting keeps float64"),
    (
        t.DecimalType(10, 2),
        [decimal.Decimal("1.25")] * 2,
        "",
        {"decimals": "float64"},
        'with `decimals="float64"`',
    ),
    (t.DateType(), [DAY] * 2, "", {}, "days since 1970"),
    (t.TimestampType(), [TIME] * 2, "", {}, "microseconds since 1970, UTC"),
    (t.TimestampNTZType(), [TIME] * 2, "", {}, "microseconds since 1970"),
    (t.StringType(), ["a", "bc"], "", {}, "index it first, or make tensors in `transform=`"),
    (t.BinaryType(), [b"a", b"bc"], "", {}, "encoded images: [below](#images)"),
    (
        t.ArrayType(t.FloatType()),
        [[1, 2]] * 2,
        ", all of length 2",
        {},
        "so for every number, date and timestamp",
    ),
    (t.ArrayType(t.ArrayType(t.LongType())), [[[1, 2, 3]] * 4] * 2, ", all 4 by 3", {}, ""),
    (
        t.ArrayType(t.LongType()),
        [[1], [2, 3]],
        " of different lengths",
        {"pad": 4},
        "with `pad=4`; or [`ragged`](#lists-of-different-lengths)",
    ),
    (t.ArrayType(t.StringType()), [["a"], []], "", {}, ""),
    (t.ArrayType(t.BinaryType()), [[b"a"], []], "", {}, ""),
    (VectorUDT(), [[1, 2]] * 2, " of MLlib, all of size 2", {}, "dense and sparse"),
    (IMAGE, [PICTURE] * 2, "Spark's images, all 4 by 2 with 3 channels", {}, "[images](#images)"),
    (PAIR, [], "", {}, "select its parts"),
    (t.MapType(t.StringType(), t.IntegerType()), [], "", {}, "select its parts"),
    (t.NullType(), [], "", {}, "drop it"),
    (t.DayTimeIntervalType(), [], "", {}, "cast it to a number"),
]


def converted(data_type: t.DataType) -> pa.DataType | None:
    """The Arrow type of the files; None where the conversion refuses."""
    try:
        check_columns(t.StructType([t.StructField("x", data_type)]), by_case=True)
    except TypeError:
        return None
    if is_vector(data_type):
        data_type = t.ArrayType(t.DoubleType())  # What vector_to_array makes.
    return in_files(target_type(data_type, "float32"))


def in_files(data_type: t.DataType) -> pa.DataType:
    if isinstance(data_type, t.ArrayType):
        return pa.list_(in_files(data_type.elementType))
    if isinstance(data_type, t.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    return ARROW[type(data_type)]


def batch_of(directory: Path, arrow: pa.DataType, values: list[Any], **options: Any) -> str:
    """What the column is in a batch, in words."""
    manifest = one(directory, pa.table({"x": pa.array(values, arrow)}))
    try:
        with load(directory, manifest, batch_size=2, **options) as loader:
            found = next(iter(loader))["x"]
    except DatasetError:
        return "refused when loading"
    if isinstance(found, torch.Tensor):
        shape = ", ".join(["batch", *map(str, found.shape[1:])])
        return f"{str(found.dtype).removeprefix('torch.')} `[{shape}]`"
    words = "a list"
    while isinstance(found[0], list):
        words, found = f"{words} of lists", found[0]
    return f"{words} of `{type(found[0]).__name__}`"


def table(directory: Path) -> str:
    lines = []
    for number, (data_type, values, words, options, note) in enumerate(ROWS):
        is_arrow = isinstance(data_type, pa.DataType)
        arrow = data_type if is_arrow else converted(data_type)
        name = words if is_arrow else f"`{data_type.simpleString()}`{words}"
        batch = "refused when converting"
        if arrow is not None:
            batch = batch_of(directory / str(number), arrow, values)
            if options:
                with_options = batch_of(directory / f"{number}-with", arrow, values, **options)
                note = f"{with_options} {note}"
        lines.append(f"| {name} | {batch} | {note} |\n".replace("|  |", "| |"))
    return HEAD + "".join(lines)


def test_the_page_has_the_table(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found in PAGE.read_text(), f"docs/data.md should have:\n{found}"


def test_lists_of_words_keep_their_order_and_fill_their_nulls(tmp_path: Path) -> None:
    words = [["a", "bc"], None, [], ["d", None]]
    deep = [[["x"], []], [None], [], [[None, "y"]]]
    table = pa.table({"words": words, "deep": pa.array(deep), "id": range(4)})
    manifest = one(tmp_path, table, 2)
    with pytest.raises(DatasetError, match="'words' holds 2 nulls"):
        load(tmp_path, manifest, batch_size=4)
    with load(tmp_path, manifest, batch_size=4, nulls="fill", pad=3) as loader:
        (batch,) = list(loader)
    order = batch["id"].tolist()
    expected_words = [["a", "bc"], [], [], ["d", ""]]
    expected_deep = [[["x"], []], [[]], [], [["", "y"]]]
    assert batch["words"] == [expected_words[row] for row in order]
    assert batch["deep"] == [expected_deep[row] for row in order]
    for option in ({"pad": {"words": 3}}, {"ragged": ["words"]}):
        with pytest.raises(ValueError, match="'words', which is list"):
            load(tmp_path, manifest, batch_size=4, nulls="fill", **option)
