"""``transform`` gives a network the numbers that the loader of a conversion gave it."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sparkdl_runner.estimator import TorchModel
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.training.fitting.network_columns import network_columns

pytestmark = pytest.mark.integration

NAN = float("nan")
DAY = datetime.date(1699, 12, 31)
MOMENT = datetime.datetime(1969, 10, 26, 2, 30, 0, 123456)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), -113],
    "int": [-(2**31), 0],
    "bigint": [2**53 - 1, -113],
    "float": [NAN, 1.5],
    "double": [NAN, 1e300],
    "decimal(20,3)": [Decimal("0.545"), Decimal("-12345678901234567.891")],
    "date": [DAY, datetime.date(2250, 1, 1)],
    "timestamp": [MOMENT, datetime.datetime(2024, 7, 1)],
    "timestamp_ntz": [MOMENT, datetime.datetime(2024, 3, 31, 2, 30)],
}
DEEPER = ("bigint", "double", "date")


def echo() -> nn.Module:
    """A network of a class that Python workers cannot import, and so travels by value."""

    class Echo(nn.Module):
        """Returns what it is given, each argument as a matrix of doubles."""

        def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: one.reshape(len(one), -1).double() for name, one in given.items()}

    return Echo()


def image(mode: str) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((7, 5), 60).convert(mode).save(stream, format="PNG")
    return stream.getvalue()


def frame_of(spark: Any, *, nulls: bool, nan: float) -> Any:
    """Three rows of each type, alone and in lists, some in lists of lists; vectors; images."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import types as t

    none: Any = [None] if nulls else []
    vectors = [Vectors.dense([1.5, nan]), Vectors.sparse(2, {1: 0.1})]
    columns: dict[str, tuple[Any, list[Any]]] = {
        "vector": (VectorUDT(), [*vectors, *none, vectors[1]]),
        "padded_vector": (VectorUDT(), [vectors[0], Vectors.dense([0.5]), *none, vectors[1]]),
        "picture": (t.BinaryType(), [image("L"), image("RGB"), *none, image("RGBA")]),
    }
    for name, values in VALUES.items():
        one, two = (nan if value is NAN else value for value in values)
        kind, hole = t._parse_datatype_string(name), None if nulls else one
        name = name.partition("(")[0]
        lists = [[one, two], [two, hole], *none, [one, one]]
        columns[name] = kind, [one, two, *none, one]
        columns[f"list_{name}"] = t.ArrayType(kind), lists
        if name in DEEPER:
            columns[f"padded_{name}"] = t.ArrayType(kind), [[one], [], *none, [two, hole, one]]
            deep = [[row, [two, two]] for row in lists[:2]]
            deep += [*none, [[one, one], None if nulls else lists[0]]]
            columns[f"deep_{name}"] = t.ArrayType(t.ArrayType(kind)), deep
    schema = t.StructType([t.StructField(name, kind) for name, (kind, _) in columns.items()])
    rows = zip(*(values[:3] for _, values in columns.values()), strict=True)
    return spark.createDataFrame(list(rows), schema).coalesce(1)


READINGS: dict[str, dict[str, Any]] = {
    "no nulls": {"nulls": "error"},
    "filled": {"nulls": "fill", "fill_value": 1},
    "masked": {"nulls": "mask", "fill_value": 1},
    "NaN": {"nulls": "nan"},
}


@pytest.mark.parametrize("reading", READINGS)
def test_a_network_is_given_what_the_loader_gave(spark, cache, reading):
    from sparkdl_runner.data import make_spark_converter

    # pandas, by which Spark of before 4.1 hands over columns, tells no null from NaN for a mask.
    nan = 0.5 if reading == "masked" else NAN
    frame = frame_of(spark, nulls=reading != "no nulls", nan=nan)
    names = [name for name in frame.columns if not (reading == "masked" and "padded" in name)]
    if reading == "NaN":
        names = [name for name in names if name.endswith(("float", "double", "vector", "picture"))]
    options: dict[str, Any] = {
        **READINGS[reading],
        "images": {"picture": (3, 4)},
        "pad": {name: 2 for name in names if "padded" in name},
    }
    frame = frame.select(*names)
    with make_spark_converter(frame, dtype=None, allow_nulls=True) as made:
        lengths = {name: made.open()[0].column(name).list_lengths for name in names}
        order = {"batch_size": 3, "num_epochs": 1, "shuffle": False}
        with made.make_torch_dataloader(decimals="float64", **order, **options) as loader:
            (batch,) = list(loader)
    ends = ("", "_mask", "_length")
    extra = [f"{name}{end}" for name in names for end in ends[1:] if f"{name}{end}" in batch]
    inputs = Inputs({name: (name,) for name in names}, extra)
    positional, named = inputs(batch)
    expected = echo()(*positional, **named)
    assert set(expected) == {*names, *extra}
    columns = network_columns(frame.schema, names, options, lengths)
    assert {one.name: one.dtype for one in columns} == {
        name: str(batch[name].dtype).removeprefix("torch.") for name in names
    }
    outputs = {
        name: Output("regression", size=one.shape[1] if one.shape[1] > 1 else None)
        for name, one in expected.items()
    }
    model = TorchModel(echo(), inputs, outputs, columns=columns)
    rows = model.transform(frame).select(*(f"prediction_{name}" for name in expected)).collect()
    for name, one in expected.items():
        found = np.array([row[f"prediction_{name}"] for row in rows], np.float64)
        found = found.reshape(one.shape)
        assert np.array_equal(found, one.numpy(), equal_nan=True), (name, found, one)
