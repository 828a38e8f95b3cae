"""The tables that loaders are measured on."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = [f"c{index:02}" for index in range(33)]
IMAGE_SIZE = (64, 64)
LIST_LENGTH = 64
"""The longest list of tables of lists, and what the padded ones are filled up to."""
SEQUENCE_LENGTH = 2048
"""The length to which documents are packed."""
TOKEN_BYTES = 4
_GROUP_BYTES = 32 << 20


def _arrays(random: np.random.Generator, rows: int, width: int = 64) -> Any:
    import pyarrow as pa

    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    values = pa.array(random.random(rows * width, dtype=np.float32))
    return pa.ListArray.from_arrays(offsets, values)


def _array_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": _arrays(random, rows)}


def _scalar_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    columns = {name: random.random(rows, dtype=np.float32) for name in SCALARS}
    return {**columns, "label": random.integers(0, 10, rows)}


def _vector_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """ML vectors as Spark stores them, all dense."""
    import pyarrow as pa

    nothing = pa.nulls(rows, pa.list_(pa.int32()))
    fields = {
        "type": pa.array(np.ones(rows, dtype=np.int8)),
        "size": pa.nulls(rows, pa.int32()),
        "indices": nothing,
        "values": _arrays(random, rows, 28).cast(pa.list_(pa.float64())),
    }
    return {"x": pa.StructArray.from_arrays(list(fields.values()), list(fields))}


def _vector_array_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": _arrays(random, rows, 28)}


def _image_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """JPEGs of coloured noise, smoothed, so that they compress as photographs do."""
    from PIL import Image

    encoded = []
    for _ in range(rows):
        small = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize(IMAGE_SIZE[::-1], Image.Resampling.BICUBIC)
        stream = io.BytesIO()
        image.save(stream, format="JPEG", quality=90)
        encoded.append(stream.getvalue())
    return {"image": encoded, "label": random.integers(0, 10, rows)}


def _int_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {name: random.integers(0, 1 << 40, rows) for name in ("user", "item")}


def _lists(lengths: Any, values: Any) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _list_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    import pyarrow as pa

    lengths = random.integers(0, LIST_LENGTH + 1, rows)
    return {"visits": _lists(lengths, pa.array(random.integers(0, 1 << 40, lengths.sum())))}


def _token_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    """Documents of 300 tokens in the middle, a few of thousands."""
    import pyarrow as pa

    lengths = random.lognormal(np.log(300), 0.8, rows).astype(np.int64).clip(1, 20_000)
    tokens = random.integers(0, 50_000, lengths.sum(), dtype=np.int32)
    return {"tokens": _lists(lengths, pa.array(tokens))}


def _string_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(random.integers(5, 61, rows))]).astype(np.int32)
    letters = random.integers(97, 123, offsets[-1], dtype=np.uint8)
    return {"text": pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))}


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], dict[str, Any]], int]] = {
    "array": (_array_table, 256),
    "scalar": (_scalar_table, 33 * 4 + 8),
    "vector": (_vector_table, 28 * 8),
    "image": (_image_table, IMAGE_SIZE[0] * IMAGE_SIZE[1] * 3 + 8),
    "int": (_int_table, 16),
    "padded": (_list_table, LIST_LENGTH * 8 + 8),
    "ragged": (_list_table, LIST_LENGTH * 4 + 8),
    "string": (_string_table, 33),
    "packed": (_token_table, 412 * TOKEN_BYTES),
}
"""For each table the function that makes its columns, and the bytes of a row in a batch."""


def _even(rows: int, most: int) -> int:
    """Rows of equal row groups that have ``most`` or fewer."""
    groups = -(-rows // most)
    return -(-rows // groups)


def write_table(table: str, directory: Path, *, rows: int, files: int) -> None:
    """Writes a table's files and their manifest, unless they are there."""
    import pyarrow as pa
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet
    from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

    if (directory / MANIFEST_NAME).exists():
        return
    make, row_bytes = TABLES.get(table, (_vector_array_table, 112))
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = []
    for number in range(files):
        count = rows * (number + 1) // files - rows * number // files
        names.append(f"part-{number:05}.parquet")
        pq.write_table(
            pa.table(make(random, count)),
            directory / names[-1],
            compression="none",
            row_group_size=_even(count, _GROUP_BYTES // row_bytes),
        )
    filesystem = pyarrow.fs.LocalFileSystem()
    manifest = describe_parquet(filesystem, str(directory), names, keep_footers=True)
    manifest.write(filesystem, str(directory))
    if table == "vector":
        beside = directory.with_name(directory.name.replace(table, "vector_as_array"))
        write_table("vector_as_array", beside, rows=rows, files=files)
