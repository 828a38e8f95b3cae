"""What every kind of column becomes in a batch."""

from __future__ import annotations

import datetime
import decimal
import io
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from parquet_sets import load, numbered, one
from PIL import Image

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors import arrays as decode

VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)
IMAGE = pa.struct(
    {
        "origin": pa.string(),
        "height": pa.int32(),
        "width": pa.int32(),
        "nChannels": pa.int32(),
        "mode": pa.int32(),
        "data": pa.binary(),
    }
)


def read(directory: Path, data: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """All rows as one batch, in the data set's order."""
    table = pa.table(data)
    manifest = one(directory, table)
    with load(
        directory,
        manifest,
        **{"batch_size": max(1, table.num_rows), "shuffle": False, "tail": "uneven", **arguments},
    ) as loader:
        batches = list(loader)
    assert len(batches) == 1
    return batches[0]


@pytest.mark.parametrize(
    ("arrow_type", "torch_type"),
    [
        (pa.int8(), torch.int8),
        (pa.int16(), torch.int16),
        (pa.int32(), torch.int32),
        (pa.int64(), torch.int64),
        (pa.uint8(), torch.uint8),
        (pa.uint16(), torch.int32),
        (pa.uint32(), torch.int64),
        (pa.uint64(), torch.int64),
        (pa.float32(), torch.float32),
        (pa.float64(), torch.float64),
    ],
)
def test_numbers(tmp_path: Path, arrow_type: pa.DataType, torch_type: torch.dtype) -> None:
    values = [0, 1, 2, 100, 7]
    lists = [[value, 5] for value in values]
    batch = read(
        tmp_path,
        {"x": pa.array(values, arrow_type), "y": pa.array(lists, pa.list_(arrow_type))},
    )
    assert batch["x"].dtype == batch["y"].dtype == torch_type
    assert batch["x"].tolist() == values
    assert batch["y"].tolist() == lists


def test_bool_and_half(tmp_path: Path) -> None:
    bools = [True, False, False, True, True, False, True, False, True]
    batch = read(tmp_path, {"x": bools, "y": [[b, not b] for b in bools]})
    assert batch["x"].dtype == torch.bool
    assert batch["x"].tolist() == bools
    assert batch["y"].tolist() == [[b, not b] for b in bools]


def test_dates_are_days_and_timestamps_microseconds(tmp_path: Path) -> None:
    days = [datetime.date(1970, 1, 3), datetime.date(1969, 12, 31)]
    times = [
        datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
    ]
    columns = {
        "day": days,
        "us": pa.array(times, pa.timestamp("us", "UTC")),
        "ms": pa.array(times, pa.timestamp("ms", "UTC")),
        "duration": pa.array([5, -5], pa.duration("ms")),
    }
    batch = read(tmp_path, columns)
    assert batch["day"].tolist() == [2, -1]
    assert batch["day"].dtype == torch.int32
    assert batch["us"].tolist() == batch["ms"].tolist() == [1_000_000, -1_000_000]
    assert batch["duration"].tolist() == [5000, -5000]


def test_decimals_are_refused_with_the_way_out(tmp_path: Path) -> None:
    columns = {"price": [decimal.Decimal("1.25"), decimal.Decimal("-3.50")]}
    with pytest.raises(DatasetError, match=r"'price' is decimal128\(3, 2\).*decimals='float64'"):
        read(tmp_path, columns)
    assert read(tmp_path, columns, decimals="float64")["price"].tolist() == [1.25, -3.5]


def test_arrays_of_arrays(tmp_path: Path) -> None:
    nested = [[[i, i + 1], [i + 2, i + 3], [0, 1]] for i in range(5)]
    batch = read(tmp_path, {"x": nested})
    assert batch["x"].tolist() == nested
    assert batch["x"].shape == (5, 3, 2)


def test_a_part_of_a_column_of_lists_has_the_values_of_that_part_alone() -> None:
    lists = pa.array([[0], [1, 2], [], [3, 4, 5], [6]])
    offsets, values = decode.lists(lists[1:4])
    assert (offsets.tolist(), values.to_pylist()) == ([0, 2, 2, 5], [1, 2, 3, 4, 5])


def test_fixed_size_lists(tmp_path: Path) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    batch = read(tmp_path, {"x": pa.array(rows, pa.list_(pa.float32(), 2))})
    assert batch["x"].tolist() == rows


def test_vectors_dense_and_sparse(tmp_path: Path) -> None:
    vectors = [
        {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]},
        {"type": 0, "size": 3, "indices": [0, 2], "values": [4.0, 5.0]},
        {"type": 0, "size": 3, "indices": [], "values": []},
        {"type": 1, "size": None, "indices": None, "values": [6.0, 7.0, 8.0]},
    ]
    batch = read(tmp_path, {"x": pa.array(vectors, VECTOR)})
    assert batch["x"].tolist() == [[1, 2, 3], [4, 0, 5], [0, 0, 0], [6, 7, 8]]
    vectors.append(None)  # type: ignore[arg-type]
    batch = read(tmp_path, {"x": pa.array(vectors, VECTOR)}, nulls="mask")
    assert batch["x"][4].tolist() == [0, 0, 0]
    assert batch["x_mask"].tolist() == [True] * 4 + [False]


def test_vectors_of_different_sizes_are_refused(tmp_path: Path) -> None:
    vectors = [
        {"type": 1, "size": None, "indices": None, "values": [1.0]},
        {"type": 0, "size": 3, "indices": [0], "values": [4.0]},
    ]
    with pytest.raises(DatasetError, match="'x' holds ML vectors of different sizes"):
        read(tmp_path, {"x": pa.array(vectors, VECTOR)})


def test_ragged_lists_padded(tmp_path: Path) -> None:
    rows = [[1], [], [2, 3, 4], [5, 6]]
    with pytest.raises(DatasetError, match=r"'x' is list<.*different lengths.*pad=\{'x': n\}"):
        read(tmp_path, {"x": rows})
    batch = read(tmp_path, {"x": rows}, pad=2, pad_value=-1)
    assert batch["x"].tolist() == [[1, -1], [-1, -1], [2, 3], [5, 6]]
    assert batch["x_length"].tolist() == [1, 0, 2, 2]


def test_ragged_lists_of_fixed_lists_padded(tmp_path: Path) -> None:
    batch = read(tmp_path, {"x": [[[1, 2]], [], [[3, 4], [5, 6]]]}, pad={"x": 2})
    assert batch["x"].tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3, 4], [5, 6]]]


def test_ragged_lists_as_values_and_offsets(tmp_path: Path) -> None:
    rows = [[1], [], [2, 3, 4], [5, 6]]
    batch = read(tmp_path, {"x": rows}, ragged=["x"])
    assert batch["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert batch["x_offsets"].tolist() == [0, 1, 1, 4, 6]


def test_text_and_bytes_are_lists(tmp_path: Path) -> None:
    text, blobs = ["a", "", "ü", "dd"], [b"a", b"", b"\x00\xff", b"d"]
    dictionary = pa.array(text).dictionary_encode()
    batch = read(tmp_path, {"t": text, "b": blobs, "d": dictionary, "n": [1, 2, 3, 4]})
    assert batch["t"] == batch["d"] == text
    assert batch["b"] == blobs


def test_variable_columns_follow_the_shuffle(tmp_path: Path) -> None:
    rows = 101
    table = numbered(rows).append_column("text", pa.array([str(i) for i in range(rows)]))
    table = table.append_column("list", pa.array([list(range(i % 5)) for i in range(rows)]))
    manifest = one(tmp_path, table, 10)
    for tail in ("pad", "uneven"):
        seen = []
        with load(tmp_path, manifest, batch_size=8, tail=tail, ragged=["list"]) as loader:
            for batch in loader:
                real = batch.get("row_mask", torch.ones(len(batch["id"]), dtype=torch.bool))
                ids = batch["id"][real].tolist()
                assert batch["text"][: len(ids)] == [str(i) for i in ids]
                expected = [list(range(i % 5)) for i in ids]
                begins = batch["list_offsets"][: len(ids) + 1].tolist()
                assert begins == [0, *accumulate(map(len, expected))]
                assert batch["list"][: begins[-1]].tolist() == [*chain(*expected)]
                seen += ids
        assert sorted(seen) == list(range(rows))


def _encoded(image_format: str, value: int, size: tuple[int, int] = (4, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255 - value)).save(stream, format=image_format)
    return stream.getvalue()


def test_encoded_images(tmp_path: Path) -> None:
    encoded = [_encoded("PNG", value) for value in (0, 100, 255)]
    batch = read(tmp_path, {"image": encoded}, images={"image": (3, 4)})
    assert batch["image"].shape == (3, 3, 4, 3)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"][1, 2, 3].tolist() == [100, 0, 155]
    resized = read(tmp_path, {"image": encoded}, images={"image": (6, 8, "L")})
    assert resized["image"].shape == (3, 6, 8, 1)


def test_bytes_that_are_no_image_are_named(tmp_path: Path) -> None:
    encoded = [_encoded("JPEG", 3), b"no image"]
    with pytest.raises(
        DatasetError, match=r"row group 0, column 'image', row 1: it is no image.* read\."
    ):
        read(tmp_path, {"image": encoded}, images={"image": (3, 4)})
    with pytest.raises(ValueError, match=r"images\['image'\] is 7; expected \(height, width\)"):
        read(tmp_path, {"image": encoded}, images={"image": 7})


def test_images_of_sparks_schema(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 2, 3, 3), dtype=np.uint8)
    rows: list[Any] = [
        {
            "origin": "x",
            "height": 2,
            "width": 3,
            "nChannels": 3,
            "mode": 16,
            "data": image[..., ::-1].tobytes(),
        }
        for image in pixels
    ]
    batch = read(tmp_path, {"image": pa.array(rows, IMAGE)})
    assert np.array_equal(batch["image"].numpy(), pixels)
    batch = read(tmp_path, {"image": pa.array([*rows, None], IMAGE)}, nulls="mask")
    assert np.array_equal(batch["image"].numpy()[:5], pixels)
    assert batch["image_mask"].tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("values", [[1, None, 3, 4], [1.5, None, 2.5, 3.0]])
def test_nulls_of_numbers(tmp_path: Path, values: list[Any]) -> None:
    columns = {"x": values, "y": [[1, 2], None, [3, None], [5, 6]]}
    with pytest.raises(DatasetError, match=r"column 'x' holds 1 nulls.*nulls='fill'"):
        read(tmp_path, columns)
    filled = read(tmp_path, columns, nulls="fill", fill_value=9)
    assert filled["x"].tolist() == [9 if value is None else value for value in values]
    assert filled["y"].tolist() == [[1, 2], [9, 9], [3, 9], [5, 6]]
    masked = read(tmp_path, columns, nulls="mask")
    assert masked["x_mask"].tolist() == [True, False, True, True]
    assert masked["y_mask"].tolist() == [[True] * 2, [False] * 2, [True, False], [True] * 2]


def test_nulls_as_nan(tmp_path: Path) -> None:
    columns = {"x": [1.5, None], "y": [[None, 1.0], [2.0, 3.0]]}
    batch = read(tmp_path, columns, nulls="nan")
    assert np.array_equal(batch["x"].numpy(), [1.5, np.nan], equal_nan=True)
    assert np.array_equal(batch["y"].numpy(), [[np.nan, 1], [2, 3]], equal_nan=True)
    with pytest.raises(DatasetError, match="'n' is int64 and holds 1 nulls: only floating-point"):
        read(tmp_path, {"n": [1, None]}, nulls="nan")


def test_nulls_by_column_and_of_text(tmp_path: Path) -> None:
    columns = {"x": [1, None], "t": ["a", None]}
    batch = read(tmp_path, columns, nulls={"x": "mask", "t": "fill"})
    assert batch["t"] == ["a", ""]
    with pytest.raises(DatasetError, match="column 't' holds 1 nulls"):
        read(tmp_path, columns, nulls={"x": "mask"})


def test_a_matrix_of_features(tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1, 2, 3, 4], pa.float32()),
        "b": pa.array([5, 6, 7, 8], pa.int32()),
        "label": [0, 1, 0, 1],
    }
    batch = read(tmp_path, columns, feature_cols=["b", "a"])
    assert batch.keys() == {"features", "label"}
    assert batch["features"].tolist() == [[5, 1], [6, 2], [7, 3], [8, 4]]
    assert batch["features"].dtype == torch.float32
    only = read(tmp_path, columns, columns=[], feature_cols=["a"], features_name="x")
    assert only.keys() == {"x"}


def test_columns_that_have_no_tensor_are_named(tmp_path: Path) -> None:
    columns = {"m": pa.array([{"a": 1}]), "n": [1]}
    with pytest.raises(DatasetError, match=r"column 'm' is struct<.*columns=\[…\]"):
        read(tmp_path, columns, columns=["n", "m"])
    assert read(tmp_path, columns).keys() == {"n"}


def test_batches_are_contiguous_and_may_be_changed(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(40), 10)
    with load(tmp_path, manifest, batch_size=8) as loader:
        for batch in loader:
            for tensor in batch.values():
                assert tensor.is_contiguous()
                tensor.zero_()


def test_a_transform_sees_every_batch(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(40), 10)

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {"doubled": batch["id"] * 2}

    with load(tmp_path, manifest, batch_size=8, transform=double) as loader:
        found = torch.cat([batch["doubled"] for batch in loader])
    assert sorted(found.tolist()) == list(range(0, 80, 2))


def test_a_dot_in_a_column_name(tmp_path: Path) -> None:
    data = {"a": [[1.0, 2.0], [3.0, 4.0]], "a.b": [1, 2], "b.c.d": [[5], [6]]}
    found = read(tmp_path, data)
    assert {name: value.tolist() for name, value in found.items()} == data


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"nulls": "fill", "fill_value": 0.5}, r"fill_value is 0\.5, and column 'n' is int8"),
        ({"nulls": "mask", "fill_value": 300}, "fill_value is 300, and column 'n' is int8"),
        ({"nulls": "fill", "fill_value": float("nan")}, "fill_value is nan, and column 'n'"),
    ],
)
def test_a_fill_value_is_never_changed_silently(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, {"n": pa.array([1, None], pa.int8())}, **arguments)


def test_a_pad_value_is_never_changed_silently(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pad_value is 1\.5, and column 'x' is list"):
        read(tmp_path, {"x": [[1], [2, 3]]}, pad=2, pad_value=1.5)
    assert read(tmp_path, {"x": [[1], [2, 3]]}, pad=2, pad_value=-1)["x"].tolist() == [
        [1, -1],
        [2, 3],
    ]
