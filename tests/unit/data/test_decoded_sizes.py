"""The manifest says what values take once decoded, however small the file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL

from sparkdl_runner.data.dataset import decoded_sizes
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.parquet import sample
from sparkdl_runner.data.parquet.pages import page_of

ROWS = 1_000
PASSAGES = [chr(97 + number) * 2_000 for number in range(20)]


def lists(lengths: list[int], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *lengths]), pa.int32()), values)


def describe(folder: Path, column: pa.Array, **options: Any) -> ColumnInfo:
    """The column, written in four row groups of two files."""
    half = len(column) // 2
    for name, start in (("a.parquet", 0), ("b.parquet", half)):
        table = pa.table({"id": range(half), "x": column.slice(start, half)})
        pq.write_table(table, folder / name, row_group_size=half // 2, **options)
    return describe_parquet(LOCAL, str(folder), ["a.parquet", "b.parquet"]).column("x")


LENGTHS = [number % 7 for number in range(ROWS)]
IMAGES = pa.array(
    [
        {"origin": "", "height": 1, "width": 2, "nChannels": 3, "mode": 16, "data": b"123456"}
        for _ in range(ROWS)
    ],
    pa.struct(
        [
            ("origin", pa.string()),
            *((name, pa.int32()) for name in ("height", "width", "nChannels", "mode")),
            ("data", pa.binary()),
        ]
    ),
)
VECTORS = pa.array(
    [{"type": 1, "size": None, "indices": None, "values": [1.0] * 8} for _ in range(ROWS)],
    pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    ),
)


@pytest.mark.parametrize(
    ("column", "decoded", "most"),
    [
        (pa.array([PASSAGES[n % 20] for n in range(ROWS)]), ROWS * 2_000, 2_000),
        (pa.array([b"", None, b"1234", b"12"] * (ROWS // 4)), ROWS // 4 * 6, 4),
        (pa.array(["é" * 3] * ROWS).dictionary_encode(), ROWS * 6, 6),
        (lists(LENGTHS, pa.array(np.ones(sum(LENGTHS), np.int64))), 8 * sum(LENGTHS), 48),
        (lists([5] * ROWS, pa.array([True] * 5 * ROWS)), 5 * ROWS, 5),
        (lists(LENGTHS, pa.array(["abc"] * sum(LENGTHS))), 3 * sum(LENGTHS), 18),
        (
            lists([2] * ROWS, lists([3] * 2 * ROWS, pa.array(np.ones(6 * ROWS, np.float32)))),
            24 * ROWS,
            24,
        ),
        (VECTORS, ROWS * 69, 69),
        (IMAGES, ROWS * 22, 22),
    ],
)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_all_values_are_counted(
    tmp_path: Path, column: pa.Array, decoded: int, most: int, use_dictionary: bool
) -> None:
    info = describe(tmp_path, column, use_dictionary=use_dictionary)
    assert info.decoded_bytes is not None
    assert info.group_row_bytes is not None
    # Without a dictionary, the footer knows them but for what pages have beside values.
    assert decoded <= info.decoded_bytes <= decoded * 1.3 + 4_000
    assert decoded / ROWS <= info.group_row_bytes <= decoded / ROWS * 1.3 + 20
    assert info.most_row_bytes in (most, None if not use_dictionary else most)


def test_one_number_a_row_has_no_such_size(tmp_path: Path) -> None:
    info = describe(tmp_path, pa.array(range(ROWS)))
    assert (info.decoded_bytes, info.group_row_bytes, info.most_row_bytes) == (None, None, None)


def test_the_row_group_with_the_largest_rows_counts(tmp_path: Path) -> None:
    info = describe(tmp_path, pa.array(["a"] * (ROWS - 250) + ["a" * 9_000] * 250))
    assert (info.group_row_bytes, info.most_row_bytes) == (9_000, 9_000)
    assert info.decoded_bytes == ROWS - 250 + 250 * 9_000


def test_of_many_row_groups_some_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_sizes, "_MOST_GROUPS", 2)
    info = describe(tmp_path, pa.array([PASSAGES[n % 20] for n in range(ROWS)]))
    assert (info.decoded_bytes, info.group_row_bytes) == (ROWS * 2_000, 2_000)
    assert info.most_row_bytes is None  # Nobody saw the other two.


def test_of_a_large_row_group_the_first_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_SAMPLE_BYTES", 100)
    info = describe(tmp_path, pa.array([f"{n:08}" for n in range(ROWS)]))
    assert info.decoded_bytes is not None
    assert 8 * ROWS <= info.decoded_bytes < 10 * ROWS
    assert info.most_row_bytes is None


def test_a_text_that_had_no_place_in_the_dictionary_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_SAMPLE_BYTES", 1)
    short = [b"a"] * 100
    long = [b"%05d" % n * 1_000 for n in range(150)]
    column = pa.array((short + long) * 4)
    info = describe(tmp_path, column, dictionary_pagesize_limit=64, write_batch_size=50)
    assert info.decoded_bytes is not None
    assert info.decoded_bytes > 0.99 * 4 * 150 * 5_000


def test_a_large_dictionary_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a dictionary that is too large was read")

    monkeypatch.setattr(sample, "_MOST_PAGE_BYTES", 30_000)
    monkeypatch.setattr(sample, "_sample_column", refuse)
    info = describe(tmp_path, pa.array([PASSAGES[n % 20] for n in range(ROWS)]))
    assert info.decoded_bytes is not None
    assert info.group_row_bytes is not None
    assert ROWS * 2_000 <= info.decoded_bytes <= ROWS * 2_010
    assert info.most_row_bytes is None


@pytest.mark.parametrize("damage", [b"\x15", b"\xff" * 32, b"\x15\x00" * 16, b""])
def test_a_damaged_page_header_is_no_reason_to_fail(damage: bytes) -> None:
    assert page_of(damage).size_bytes > sample._MOST_PAGE_BYTES


def test_damaged_pages_leave_the_size_unknown(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": ["a" * 99, "b"] * ROWS}), tmp_path / "a.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[40:80] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(content)
    info = describe_parquet(LOCAL, str(tmp_path), ["a.parquet"]).column("x")
    assert info.most_row_bytes is None


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def test_a_footer_that_lies_is_taken_by_its_word(tmp_path: Path) -> None:
    """The size is too small then, and nothing else happens: readers count what they read."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": ["a" * 99, "b"] * ROWS}), path, use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    said = varint(2 * size)
    lie = varint(2 * (1 << 7 * (len(said) - 1)))[: len(said)]
    content = path.read_bytes()
    path.write_bytes(content.replace(said, lie))
    info = describe_parquet(LOCAL, str(tmp_path), ["a.parquet"]).column("x")
    assert info.decoded_bytes is not None
    assert info.decoded_bytes < size // 2


def test_what_the_caller_counted_comes_first(tmp_path: Path) -> None:
    describe(tmp_path, pa.array(["abc"] * ROWS))
    manifest = describe_parquet(
        LOCAL,
        str(tmp_path),
        ["a.parquet"],
        decoded_bytes={"x": 5_000},
        most_row_bytes={"x": 17},
    )
    info = Manifest.from_json(manifest.to_json()).column("x")
    assert (info.decoded_bytes, info.group_row_bytes, info.most_row_bytes) == (5_000, 10, 17)


def test_a_single_row_is_as_large_as_the_caller_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": ["abc"]}), tmp_path / "a.parquet")
    counted = {"x": 5_000}
    manifest = describe_parquet(LOCAL, str(tmp_path), ["a.parquet"], decoded_bytes=counted)
    assert manifest.column("x").group_row_bytes == 5_000
