"""What Spark measured while it wrote, as the manifest is told."""

from __future__ import annotations

from sparkdl_runner.data.convert.write import _read_measures

NAMES = ["id", "raw", "words", "none"]


def test_nulls_and_lengths_are_by_column_and_plain_columns_have_none() -> None:
    seen = {
        "rows": 7,
        "digest": -1,
        "nulls-1": 1,
        "nulls-2": 2,
        "low-2-0": 3,
        "high-2-0": 3,
        "low-2-1": 1,
        "high-2-1": 4,
        "nulls-3": 7,
        "low-3-0": None,
        "high-3-0": None,
    }
    written = _read_measures("file:///x", NAMES, seen)
    assert (written.rows, written.content_digest) == (7, "f" * 16)
    assert written.null_counts == {"raw": 1, "words": 2, "none": 7}
    assert written.list_lengths == {"words": (3, None), "none": (0,)}


def test_what_was_not_measured_is_left_to_be_read_from_the_files() -> None:
    written = _read_measures("file:///x", NAMES, {})
    assert (written.rows, written.content_digest) == (None, None)
    assert (written.null_counts, written.list_lengths) == ({}, {})
