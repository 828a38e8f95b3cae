"""Data sets of petastorm's codecs, read without petastorm and without running their schema."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from recorded_unischema import SCHEMA
from sparkdl_runner.base.foreign_file import ForeignFileError
from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.consumers.petastorm.unischema import (
    UNISCHEMA_KEY,
    Field,
    Unischema,
    read_unischema,
)
from sparkdl_runner.data.convert import existing
from sparkdl_runner.data.decode.codecs import decoder_of, ndarrays
from sparkdl_runner.data.errors import BadRowError


def npy(values: Any, *, packed: bool = False) -> bytes:
    stream = io.BytesIO()
    if packed:
        np.savez_compressed(stream, arr=values)
    else:
        np.save(stream, values)
    return stream.getvalue()


def png(pixels: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def write(folder: Path, columns: dict[str, Any], pickled: bytes) -> str:
    """A folder as petastorm leaves it."""
    folder.mkdir()
    table = pa.table(columns)
    pq.write_table(table, folder / "part-0.parquet", row_group_size=3)
    schema = table.schema.with_metadata({UNISCHEMA_KEY: pickled})
    pq.write_metadata(schema, folder / "_common_metadata")
    return folder.as_uri()


def test_a_schema_is_read() -> None:
    scalar = Field(dtype="int32", shape=(), codec="ScalarCodec")
    assert read_unischema(SCHEMA) == {
        "id": scalar,
        "grid": Field(dtype="float32", shape=(2, 3), codec="NdarrayCodec"),
        "packed": Field(dtype="int16", shape=(None,), codec="CompressedNdarrayCodec"),
        "png": Field(dtype="uint8", shape=(4, 5, 3), codec="CompressedImageCodec"),
    }


def test_a_schema_with_a_key_without_a_value_is_damaged() -> None:
    at = next(place for opcode, _, place in genops(SCHEMA) if opcode.name == "SETITEMS")
    with pytest.raises(ForeignFileError, match="damaged"):
        read_unischema(SCHEMA[:at] + b"K\x01" + SCHEMA[at:])


class Booby:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (exec, (f"open({str(self.trace)!r}, 'w')",))


def test_no_schema_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    exec_as_field = SCHEMA.replace(
        b"\x8c\x13petastorm.unischema\x94\x8c\tUnischema", b"\x8c\x08builtins\x94\x8c\x04exec"
    )
    for pickled in (pickle.dumps(Booby(trace)), exec_as_field, SCHEMA[:-20], b"", b"\x80\x04."):
        with pytest.raises(ForeignFileError):
            read_unischema(pickled)
    assert not trace.exists()
    url = write(tmp_path / "data", {"id": [1]}, pickle.dumps(Booby(trace)))
    converter = make_spark_converter(url)
    with pytest.raises(ValueError, match="by a schema that only engine='petastorm' can read"):
        converter.make_torch_dataloader(engine="arrow")
    assert not trace.exists()


def test_a_folder_of_petastorms_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    grids = [None if row == 4 else rng.random((2, 3), np.float32) for row in range(7)]
    pixels = rng.integers(0, 255, (7, 4, 5, 3)).astype(np.uint8)
    columns = {
        "id": pa.array(range(7), pa.int32()),
        "grid": [None if grid is None else npy(grid) for grid in grids],
        "packed": [npy(np.arange(row, dtype=np.int16), packed=True) for row in range(7)],
        "png": [png(one) for one in pixels],
    }
    converter = make_spark_converter(write(tmp_path / "data", columns, SCHEMA))
    read = ["id", "grid", "png"]
    with converter.make_torch_dataloader(7, num_epochs=1, columns=read, nulls="mask") as loader:
        (batch,) = loader
    assert len(batch["id"]) == 7
    for place, row in enumerate(batch["id"].tolist()):
        assert np.array_equal(batch["png"][place], pixels[row])
        expected = np.zeros((2, 3)) if grids[row] is None else grids[row]
        assert np.array_equal(batch["grid"][place], expected)
        assert bool(batch["grid_mask"][place]) == (row != 4)
    damaged = tmp_path / "damaged"
    url = write(
        damaged, {**columns, "grid": [npy(np.zeros((2, 3), np.float32))] * 6 + [b"x"]}, SCHEMA
    )
    with (
        make_spark_converter(url).make_torch_dataloader(7, columns=["grid"]) as loader,
        pytest.raises(DatasetError, match="row group 2, column 'grid', row 0: it holds no such"),
    ):
        next(iter(loader))
    for column, sentence in (("packed", "differ in shape"), ("grid", "nulls")):
        with (
            pytest.raises(DatasetError, match=sentence),
            converter.make_torch_dataloader(7, columns=[column]),
        ):
            pass


NUMBERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", ">f4", "float64"]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(NUMBERS), packed=st.booleans())
def test_arrays_are_those_that_numpy_reads(data: Any, dtype: str, packed: bool) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    rows = data.draw(st.lists(st.none() | arrays.arrays(np.dtype(dtype), shape), max_size=5))
    rows = [
        np.asfortranarray(row) if row is not None and shape and data.draw(st.booleans()) else row
        for row in rows
    ]
    column = pa.array(
        [b"before", *(None if row is None else npy(row, packed=packed) for row in rows)],
        data.draw(st.sampled_from([pa.binary(), pa.large_binary()])),
    )
    codec = "CompressedNdarrayCodec" if packed else "NdarrayCodec"
    decoder = decoder_of(codec, np.dtype(dtype).name, shape)
    assert not isinstance(decoder, str)
    found = decoder.decode(column.slice(1), 1)
    assert found.shape == (len(rows), *shape)
    assert found.dtype == decoder.dtype
    for one, row in zip(found, rows, strict=True):
        np.testing.assert_array_equal(one, np.ones(shape) if row is None else row)


GOOD = npy(np.zeros(3, np.int32))


def test_numbers_are_of_the_type_that_the_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of petastorm's MNIST example: ``np.int_``, stored as 32 bits."""
    table = pa.table(
        {
            "digit": pa.array([7, 2**31 - 1, 3], pa.int32()),
            "share": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "same": pa.array([1, 2, 3], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "part-0.parquet")
    dtypes = {"digit": "int64", "share": "float64", "same": "int32"}
    fields = {
        name: Field(dtype=dtype, shape=(), codec="ScalarCodec") for name, dtype in dtypes.items()
    }
    monkeypatch.setattr(existing, "find_unischema", lambda *_: Unischema(fields=fields))
    converter = make_spark_converter(tmp_path.as_uri())
    with converter.make_torch_dataloader(3, num_epochs=1, shuffle=False) as loader:
        (batch,) = loader
    for name, dtype in dtypes.items():
        assert str(batch[name].dtype) == f"torch.{dtype}"
        assert batch[name].tolist() == table[name].to_pylist()


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (b"", "row 1 holds no such NumPy array"),
        (GOOD[:-1], "has 139 bytes and needs 140"),
        (npy(np.zeros(4, np.int32)), r"shape is \(4,\) .* says \(3,\) and int32"),
        (npy(np.zeros(3, np.int64)), "type int64"),
        (npy(np.array([1, "a", None], dtype=object)), "type object"),
        (GOOD.replace(b"(3,)", b"(9,)"), r"shape is \(9,\)"),
    ],
)
def test_a_row_that_is_no_array_is_named(bad: bytes, sentence: str) -> None:
    with pytest.raises(BadRowError, match=sentence):
        ndarrays(np.dtype("int32"), (3,), False, pa.array([GOOD, bad, GOOD]), 0)


def test_an_archive_that_unpacks_to_more_than_it_should_is_not_unpacked() -> None:
    bomb = npy(np.zeros(10_000_000, np.int32), packed=True)
    with pytest.raises(BadRowError, match="bytes, 10,012 at most"):
        ndarrays(np.dtype("int32"), (3,), True, pa.array([bomb]), 0)


def test_numbers_that_no_tensor_holds_are_refused() -> None:
    large = npy(np.array([2**63], np.uint64))
    with pytest.raises(BadRowError, match="above 2\\^63"):
        ndarrays(np.dtype("uint64"), (1,), False, pa.array([large]), 0)
    for codec, dtype, lengths in (
        ("NdarrayCodec", "str_", (1,)),
        ("NdarrayCodec", "float32", (None, 2)),
        ("CompressedImageCodec", "uint16", (4, 4)),
        ("?", "uint8", (4, 4)),
    ):
        assert isinstance(decoder_of(codec, dtype, lengths), str)
