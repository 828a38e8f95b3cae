"""A network is given the same tensors by the training's loader and by each way to score."""

from __future__ import annotations

import datetime
import io
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import load, one
from PIL import Image
from pyspark.sql import types as t
from torch import nn

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.tensors.predictor import Description, Predictor
from sparkdl_runner.tensors.served import ServedNetwork
from sparkdl_runner.training.fitting.network_columns import network_columns

UTC = datetime.UTC
DAYS = (datetime.date(1700, 1, 1), datetime.date(2250, 1, 1))
MOMENTS = (datetime.datetime(1700, 1, 1), datetime.datetime(2250, 1, 1))
LEAVES: list[tuple[t.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (t.BooleanType(), pa.bool_(), st.booleans()),
    (t.ByteType(), pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (t.ShortType(), pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (t.IntegerType(), pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (t.LongType(), pa.int64(), st.integers(-(2**53), 2**53)),
    (t.FloatType(), pa.float32(), st.floats(width=32, allow_nan=False)),
    (t.DoubleType(), pa.float64(), st.floats(allow_nan=False)),
    (t.DateType(), pa.date32(), st.dates(*DAYS)),
    (
        t.TimestampType(),
        pa.timestamp("us", "UTC"),
        st.datetimes(*MOMENTS, timezones=st.just(UTC)),
    ),
    (t.TimestampNTZType(), pa.timestamp("us"), st.datetimes(*MOMENTS)),
    (t.DecimalType(20, 3), pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
]


def image(height: int, width: int, mode: str, shade: int) -> bytes:
    stream = io.BytesIO()
    colour = shade if mode == "L" else (shade, 1, 2, 3)[: len(mode)]
    made = Image.new(mode, (width, height), colour)
    made.putpixel((0, 0), 255 if mode == "L" else (255,) * len(mode))
    made.save(stream, format="PNG")
    return stream.getvalue()


IMAGES = st.builds(
    image, st.integers(1, 9), st.integers(1, 9), st.sampled_from(["L", "RGB", "RGBA"]), st.just(9)
)


@st.composite
def columns(draw: st.DrawFn) -> tuple[t.DataType, pa.DataType, list[Any]]:
    """Some rows of a column: alike, ragged, empty, null, or all of these."""
    spark_type, kind, values = draw(
        st.sampled_from([*LEAVES, (t.BinaryType(), pa.binary(), IMAGES)])
    )
    maybe_null = draw(st.booleans())
    for _ in range(0 if kind == pa.binary() else draw(st.integers(0, 2))):
        if maybe_null:
            values = st.none() | values
        least, most = draw(st.sampled_from([(0, 0), (1, 1), (2, 2), (0, 3)]))
        values = st.lists(values, min_size=least, max_size=most)
        spark_type, kind = t.ArrayType(spark_type), pa.list_(kind)
    values = draw(st.sampled_from([values, st.none() | values, st.none()]))
    return spark_type, kind, draw(st.lists(values, min_size=1, max_size=4))


class Recorder(nn.Module):
    """Keeps what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.keep(x=x)

    def keep(self, **given: torch.Tensor) -> torch.Tensor:
        self.given = given
        return torch.zeros(len(given["x"]))


class MaskRecorder(Recorder):
    def forward(self, x: torch.Tensor, x_mask: torch.Tensor) -> torch.Tensor:
        return self.keep(x=x, x_mask=x_mask)


class LengthRecorder(Recorder):
    def forward(
        self, x: torch.Tensor, x_mask: torch.Tensor, x_length: torch.Tensor
    ) -> torch.Tensor:
        return self.keep(x=x, x_mask=x_mask, x_length=x_length)


def recorder_for(batch: dict[str, Any]) -> Recorder:
    """A network that takes all entries of a batch that a network can take."""
    if "x_length" in batch:
        return LengthRecorder()
    return MaskRecorder() if "x_mask" in batch else Recorder()


def by_arrow(predictor: Predictor, array: pa.Array) -> None:
    sliced = pa.concat_arrays([array[:1], array]).slice(1)
    predictor.predict([sliced], len(array))


def served(predictor: Predictor, series: pd.Series) -> None:
    ServedNetwork(predictor, {"y": {"prediction": "y"}}).predict(pd.DataFrame({"x": series}))


def by_pandas(predictor: Predictor, array: pa.Array) -> None:
    """As ``toPandas`` gives it: a series of NumPy's types, lists as NumPy's arrays."""
    served(predictor, array.to_pandas())


def by_arrow_in_pandas(predictor: Predictor, array: pa.Array) -> None:
    served(predictor, pd.Series(pd.array(array, dtype=pd.ArrowDtype(array.type))))


def by_objects(predictor: Predictor, array: pa.Array) -> None:
    """As a person or a server has it: values of Python's."""
    served(predictor, pd.Series(array.to_pylist(), dtype=object))


WAYS = [by_arrow, by_pandas, by_arrow_in_pandas, by_objects]


def trained(array: pa.Array, options: dict[str, Any]) -> tuple[Any, Any]:
    """All rows as one batch of the loader's, or its error; and the lengths of the lists."""
    with tempfile.TemporaryDirectory() as name:
        manifest = one(Path(name), pa.table({"x": array}), 3)
        lengths = manifest.column("x").list_lengths
        order = {"shuffle": False, "tail": "uneven", "batch_size": manifest.rows}
        try:
            with load(Path(name), manifest, decimals="float64", **order, **options) as loader:
                (batch,) = list(loader)
        except (DatasetError, ValueError) as error:
            return error, lengths
    return {name: value.clone() for name, value in batch.items()}, lengths


def holds_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(holds_null, value)))


def check(spark_type: t.DataType, array: pa.Array, options: dict[str, Any]) -> None:
    batch, lengths = trained(array, options)
    refused = isinstance(batch, Exception)
    network = Recorder() if refused else recorder_for(batch)
    inputs = Inputs.of(["x"], network)
    schema = t.StructType([t.StructField("x", spark_type)])
    description = Description(
        inputs=inputs,
        columns=network_columns(schema, ["x"], options, {"x": () if refused else lengths}),
        outputs={"y": Output("regression")},
    )
    if not refused:
        positional, named = inputs(batch)
        assert not positional
    for way in WAYS:
        network.given = {}
        predictor = Predictor(network, description, batch_size=100)
        is_float = description.columns[0].dtype.startswith("float")
        if (
            way is by_pandas
            and is_float
            and options["nulls"] == "error"
            and holds_null(array.to_pylist())
        ):
            continue  # pandas has no null among floats, and NaN is a number.
        if refused:
            with pytest.raises(ValueError, match=r"'x'.*\.$"):
                way(predictor, array)
            continue
        way(predictor, array)
        assert network.given.keys() == named.keys()
        for name, value in named.items():
            found = network.given[name]
            assert (found.dtype, found.shape) == (value.dtype, value.shape), (way, name)
            assert torch.equal(found.nan_to_num(7), value.nan_to_num(7)), (way, name, found, value)


@settings(max_examples=60, deadline=None)
@given(
    column=columns(),
    nulls=st.sampled_from(["error", "fill", "nan", "mask"]),
    fill_value=st.sampled_from([0, 1, 0.5, 300]),
    pad=st.sampled_from([None, 1, 2, {"x": 5}]),
    size=st.sampled_from([(2, 3), (4, 2, "L"), (3, 3, "RGBA")]),
)
def test_a_network_is_given_what_it_was_trained_with(column, nulls, fill_value, pad, size):
    spark_type, kind, rows = column
    options = {"nulls": nulls, "fill_value": fill_value, "pad": pad}
    if kind == pa.binary():
        options["images"] = {"x": size}
    check(spark_type, pa.array(rows, kind), options)
