"""What Spark measured while it wrote, as the manifest is told."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from sparkdl_runner.data.convert.measures import read_measures
from sparkdl_runner.data.convert.write import _wait_for

SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("raw", t.BinaryType()),
        t.StructField("words", t.ArrayType(t.ArrayType(t.StringType()))),
        t.StructField("none", t.ArrayType(t.FloatType())),
        t.StructField("some", t.ArrayType(t.ShortType())),
    ]
)


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
        "nulls-4": 0,
        "low-4-0": 0,
        "high-4-0": 9,
        "bytes-1": 10,
        "most-1": 7,
        "bytes-2": None,
        "most-2": None,
    }
    written = read_measures("file:///x", SCHEMA, seen)
    assert (written.rows, written.content_digest) == (7, "f" * 16)
    assert written.null_counts == {"raw": 1, "words": 2, "none": 7, "some": 0}
    assert written.list_lengths == {"words": (3, None), "none": (0,), "some": (None,)}
    assert written.decoded_bytes == {"raw": 10, "words": 0}
    assert written.most_row_bytes == {"raw": 7, "words": 0, "none": 0, "some": 18}


def test_what_was_not_measured_is_left_to_be_read_from_the_files() -> None:
    written = read_measures("file:///x", SCHEMA, {})
    assert (written.rows, written.content_digest) == (None, None)
    assert (written.null_counts, written.list_lengths) == ({}, {})


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_spark_without_observations_is_told_of_in_a_sentence(caplog) -> None:
    class OfConnect35:
        @property
        def get(self) -> dict[str, int]:
            raise NotImplementedError("Observation support for Spark Connect")

    assert _wait_for(OfConnect35()) == {}
    assert "did not report what it counted" in caplog.text
