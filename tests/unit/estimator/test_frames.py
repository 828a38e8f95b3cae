"""How the columns of a DataFrame become inputs of a network. These tests need no JVM."""

from __future__ import annotations

import pandas
import pytest
import torch
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from sparkdl_runner.estimator import TorchEstimator, TorchModel
from sparkdl_runner.estimator.prediction.frame import with_float_type
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.training.fitting.network_columns import network_columns

SCHEMA = t.StructType(
    [
        t.StructField("number", t.DoubleType()),
        t.StructField("day", t.DateType()),
        t.StructField("words", t.ArrayType(t.LongType())),
        t.StructField("nested", t.ArrayType(t.ArrayType(t.FloatType()))),
        t.StructField("vector", VectorUDT()),
        t.StructField("picture", t.BinaryType()),
        t.StructField("text", t.StringType()),
    ]
)


def test_each_type_becomes_what_the_loader_makes_of_it():
    reading = {
        "nulls": {"number": "fill"},
        "fill_value": 2,
        "pad": {"words": 5},
        "images": {"picture": {"height": 4, "width": 6, "exif": "apply"}},
    }
    lengths = {"nested": [2, 3], "vector": [7]}
    number, day, words, nested, vector, picture = network_columns(
        SCHEMA, SCHEMA.names[:-1], reading, lengths
    )
    assert (number.dtype, number.nulls, number.fill_value) == ("float64", "fill", 2)
    assert (day.dtype, day.nulls) == ("int32", "error")
    assert (words.dtype, words.pad, words.row_shape) == ("int64", 5, (5,))
    assert (nested.dtype, nested.shape) == ("float32", (2, 3))
    assert (vector.kind, vector.dtype, vector.shape) == ("list", "float64", (7,))
    assert (picture.kind, picture.row_shape) == ("image", (4, 6, 3))
    assert picture.exif == "apply"
    # A conversion makes arrays of vectors, so one length for all columns is theirs as well.
    (vector,) = network_columns(SCHEMA, ["vector"], {"pad": 4}, lengths)
    assert vector.row_shape == (4,)


def test_what_makes_no_tensor_is_told():
    with pytest.raises(ValueError, match=r"'text' is of type string, of which no tensor"):
        network_columns(SCHEMA, ["text"])
    with pytest.raises(ValueError, match=r"no column 'numbr'.*Did you mean 'number'\?"):
        network_columns(SCHEMA, ["numbr"])


def test_fractions_come_in_the_type_that_the_network_computes_in():
    columns = (Column(name="a", dtype="float64"), Column(name="b", dtype="int64"))
    network = torch.nn.Linear(2, 1)
    assert [one.dtype for one in with_float_type(columns, network)] == ["float32", "int64"]
    assert [one.dtype for one in with_float_type(columns, network.double())] == [
        "float64",
        "int64",
    ]
    assert with_float_type(columns, torch.nn.ReLU()) == columns


def test_a_frame_of_pandas_is_told():
    frame = pandas.DataFrame({"features": [1.0], "label": [0.0]})
    model = TorchModel(torch.nn.Linear(1, 1), ["features"], {"label": "regression"})
    for verb, call in (("fit", TorchEstimator().fit), ("transform", model.transform)):
        with pytest.raises(
            TypeError, match=rf"^{verb} takes a Spark DataFrame, not pandas.*spark\."
        ):
            call(frame)
