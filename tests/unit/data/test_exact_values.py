"""Values are exact, or said to be lost: decimals, matrices, what tensors do not hold, nothing."""

from __future__ import annotations

import io
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import load, one
from PIL import Image, ImageOps
from test_types import IMAGE, VECTOR, read

from sparkdl_runner.data.decode.codecs import decoder_of
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.decimals import floats_of
from sparkdl_runner.tensors.images import ImageSize
from training_tables import converter_of


@settings(max_examples=40, deadline=None)
@given(
    unscaled=st.lists(
        st.none() | st.integers(-(2**53) - 1, 2**53 + 1) | st.integers(1 - 10**38, 10**38 - 1),
        max_size=6,
    ),
    scale=st.integers(-3, 38),
    wide=st.booleans(),
)
def test_decimals_are_the_nearest_float64(
    unscaled: list[int | None], scale: int, wide: bool
) -> None:
    with localcontext() as context:
        context.prec = 80
        values = [None if one is None else Decimal(one).scaleb(-scale) for one in unscaled]
    # Of their digits: Arrow itself refuses some large ones of a negative scale.
    kind, size = (pa.decimal256(76, scale), 32) if wide else (pa.decimal128(38, scale), 16)
    digits = b"".join((one or 0).to_bytes(size, "little", signed=True) for one in (1, *unscaled))
    valid = np.packbits([True, *(one is not None for one in unscaled)], bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(digits)]
    array = pa.Array.from_buffers(kind, 1 + len(unscaled), buffers)[1:]
    assert array.null_count == unscaled.count(None)
    expected = [None if value is None else float(str(value)) for value in values]
    assert floats_of(array).to_pylist() == expected


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_prices_are_what_python_says(tmp_path: Path, device: str) -> None:
    prices = [Decimal(cents) / 100 for cents in range(1000)]
    batch = read(
        tmp_path,
        {"x": pa.array(prices, pa.decimal128(10, 2))},
        decimals="float64",
        device=device,
    )
    assert batch["x"].tolist() == [float(str(price)) for price in prices]


def test_a_matrix_tells_once_of_the_first_whole_number_that_it_rounds(tmp_path: Path) -> None:
    exact = {"a": pa.array([1, 2**24, 2**30]), "b": pa.array([0.5] * 3, pa.float32())}
    batch = read(tmp_path / "exact", exact, feature_cols=["a", "b"])
    assert batch["features"][:, 0].tolist() == [1, 2**24, 2**30]
    lost = {**exact, "a": pa.array([1, 2**24 + 1, 2**24 + 3])}
    sentence = "'a' holds 16777217, which the matrix's float32 makes 16777216"
    with pytest.warns(UserWarning, match=sentence) as told:
        read(tmp_path / "lost", lost, feature_cols=["a", "b"])
    assert len(told) == 1
    doubles = {"a": pa.array([2**63 - 1]), "b": pa.array([0.5])}
    with pytest.warns(UserWarning, match="holds 9223372036854775807, which the matrix's float64"):
        read(tmp_path / "doubles", doubles, feature_cols=["a", "b"])
    whole = read(tmp_path / "whole", {"a": lost["a"], "b": lost["a"]}, feature_cols=["a", "b"])
    assert whole["features"][1].tolist() == [2**24 + 1] * 2


LOST: list[tuple[pa.DataType, Any, str]] = [
    (pa.uint64(), 2**63 + 5, "holds 9223372036854775813, and a tensor's whole numbers end at 2"),
    (pa.timestamp("ns"), 3001, r"000003001 \(3001 ns since 1970\), and batches have whole micro"),
    (
        pa.timestamp("ms"),
        2**62,
        r"\(4611686018427387904 ms since 1970\), which is no number of mic",
    ),
    (pa.time64("ns"), 3001, "holds 3001 ns, and batches have whole microseconds"),
    (pa.duration("ns"), 3001, "holds 3001 ns, and batches have whole microseconds"),
]


@pytest.mark.parametrize(("kind", "value", "sentence"), LOST)
@pytest.mark.parametrize("in_list", [False, True])
def test_a_value_that_a_tensor_does_not_hold_is_named_with_its_row(
    tmp_path: Path, kind: pa.DataType, value: Any, sentence: str, in_list: bool
) -> None:
    values = pa.array([1000, 2000, 3000, 4000, None, value, 5000, value], kind)
    if in_list:
        offsets = pa.array(range(9), pa.int32())
        values = pa.ListArray.from_arrays(offsets, values)
    manifest = one(tmp_path, pa.table({"x": values}), 4)
    options: dict[str, Any] = {"nulls": "fill", "ragged": ["x"] if in_list else ()}
    place = rf"part-00000.parquet, row group 1, column 'x', row 1: it .*{sentence}"
    rows = converter_of(tmp_path).make_map_dataset(**options)
    with load(tmp_path, manifest, batch_size=2, **options) as loader:
        for read_one in (lambda: rows[5], lambda: list(loader)):
            with pytest.raises(DatasetError, match=place) as raised:
                read_one()
            assert "onvert the DataFrame again" not in str(raised.value)
            assert str(raised.value).endswith("columns=[…].")


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_vectors_and_images_of_no_size_are_rows_without_numbers(tmp_path: Path, nulls: Any) -> None:
    nothing = {"type": 1, "size": None, "indices": None, "values": []}
    sparse = {"type": 0, "size": 0, "indices": [], "values": []}
    black = {"origin": "", "height": 0, "width": 0, "nChannels": 3, "mode": 16, "data": b""}
    data = {
        "vector": pa.array([nothing, None, sparse], VECTOR),
        "image": pa.array([black, None, black], IMAGE),
        "id": [0, 1, 2],
    }
    batch = read(tmp_path, data, nulls=nulls, tail="pad", batch_size=4)
    assert batch["vector"].shape == (4, 0)
    assert batch["image"].shape == (4, 0, 0, 3)
    assert batch["id"].tolist() == [0, 1, 2, 0]
    if nulls == "mask":
        assert batch["vector_mask"].tolist() == [True, False, True, False]
        assert batch["image_mask"].tolist() == [True, False, True, False]
    assert read(tmp_path, data, nulls=nulls)["vector"].shape == (3, 0)
    rows = converter_of(tmp_path).make_map_dataset(nulls=nulls)
    assert [rows[1]["vector"].shape, rows[1]["image"].shape] == [(0,), (0, 0, 3)]


@pytest.mark.parametrize("codec", ["NdarrayCodec", "CompressedNdarrayCodec"])
def test_arrays_of_a_codec_without_numbers(codec: str) -> None:
    stream = io.BytesIO()
    empty = np.zeros((2, 0), np.float32)
    if codec == "NdarrayCodec":
        np.save(stream, empty)
    else:
        np.savez_compressed(stream, arr=empty)
    decoder: Any = decoder_of(codec, "float32", (2, 0))
    assert decoder.decode(pa.array([stream.getvalue(), None] * 2), 0).shape == (4, 2, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_an_image_is_turned_as_its_exif_says_where_that_is_asked_for(
    tmp_path: Path, orientation: int, image_format: str
) -> None:
    columns, rows = np.meshgrid(np.arange(48), np.arange(96))
    image = Image.fromarray(np.stack([2 * rows, 5 * columns, rows + columns], -1).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    image.save(stream, image_format, exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(stream)).resize((8, 16), Image.Resampling.BILINEAR)
    as_stored = Image.open(stream).convert("RGB").resize((8, 16), Image.Resampling.BILINEAR)
    data = {"x": [stream.getvalue()]}
    for size, expected in (
        ({"height": 16, "width": 8, "exif": "apply"}, upright),
        ((16, 8), as_stored),
    ):
        found = read(tmp_path, data, images={"x": size}, device="numpy")["x"][0]
        assert abs(found.astype(int) - np.asarray(expected)).max() <= 3
        by_row = converter_of(tmp_path).make_map_dataset(images={"x": size})[0]["x"]
        assert np.array_equal(by_row, found)


def test_the_size_of_images_is_checked() -> None:
    assert ImageSize.of("x", {"height": 2, "width": "3"}).shape == (2, 3, 3)
    for wrong in (
        (2,),
        (2, 3, "RGB", "apply"),
        {"height": 2},
        {"height": 2, "width": 3, "turn": 1},
    ):
        with pytest.raises(ValueError, match="or a dict of height, width, mode and exif"):
            ImageSize.of("x", wrong)
    with pytest.raises(ValueError, match="exif 'ignore' or 'apply'"):
        ImageSize.of("x", {"height": 2, "width": 3, "exif": True})


def test_rows_by_number_refuse_what_is_for_batches(tmp_path: Path) -> None:
    lists = pa.table({"x": pa.array([[1], [2, 3]])})
    one(tmp_path, lists)
    for option in ({"pack": {"x": 4}}, {"pad": "longest"}):
        with pytest.raises(ValueError, match="gives rows one by one"):
            converter_of(tmp_path).make_map_dataset(**option)[0]
