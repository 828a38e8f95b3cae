"""Files of Spark whose early days are of the Julian calendar are refused where it matters."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner.data import DatasetError, make_spark_converter

OLD, NEW = datetime.date(1582, 10, 14), datetime.date(1582, 10, 15)
# At midnight: pyarrow 14 writes int96 before 1970 wrongly at other hours.
BEFORE = datetime.datetime(1899, 12, 31, tzinfo=datetime.UTC)
AFTER = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}
LEGACY_96 = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyINT96": ""}
UNTOLD = {"org.apache.spark.sql.parquet.row.metadata": "{}"}
SPARK_4 = {"org.apache.spark.version": "4.0.0"}
CORRECTED = {"org.apache.spark.version": "3.0.0"}


def opened(folder: Path, value: object, footer: dict[str, str], kind: str = "one", **options):
    """Reads in place, in one of two row groups, the value."""
    values = {"one": [value, value], "lists": [[value], []], "nulls": [None, value]}[kind]
    is_time = isinstance(value, datetime.datetime)
    late, arrow = (AFTER, pa.timestamp("us", "UTC")) if is_time else (NEW, pa.date32())
    filler = {"one": late, "lists": [late], "nulls": None}[kind]
    arrow = pa.list_(arrow) if kind == "lists" else arrow
    table = pa.table({"id": range(4), "when": pa.array([filler] * 2 + values, arrow)})
    pq.write_table(
        table.replace_schema_metadata(footer), folder / "a.parquet", row_group_size=2, **options
    )
    return make_spark_converter(f"file://{folder}", allow_nulls=True)


@pytest.mark.parametrize("footer", [SPARK_2, LEGACY, UNTOLD])
@pytest.mark.parametrize("kind", ["one", "lists", "nulls"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("early", "late"), [(OLD, NEW), (BEFORE, AFTER)])
def test_an_early_value_is_refused_and_none_after(tmp_path, footer, kind, statistics, early, late):
    with pytest.raises(DatasetError) as caught:
        opened(tmp_path, early, footer, kind, write_statistics=statistics)
    assert re.search(r"a\.parquet: column 'when' holds days before 1582-10-15", str(caught.value))
    assert "make_spark_converter(spark.read.parquet(…))" in str(caught.value)
    assert len(opened(tmp_path, late, footer, kind, write_statistics=statistics)) == 4


@pytest.mark.parametrize(
    ("footer", "refused"), [(SPARK_2, True), (LEGACY_96, True), (CORRECTED, True), (LEGACY, False)]
)
def test_int96_times_have_a_mark_of_their_own(tmp_path, footer, refused):
    def open_it() -> None:
        opened(tmp_path, BEFORE, footer, use_deprecated_int96_timestamps=True)

    if refused:
        with pytest.raises(DatasetError, match="column 'when'"):
            open_it()
    else:
        open_it()
    opened(tmp_path, AFTER, footer, use_deprecated_int96_timestamps=True)


@pytest.mark.parametrize("footer", [CORRECTED, LEGACY_96, SPARK_4, {}])
def test_other_writers_mean_what_they_say(tmp_path, footer):
    with opened(tmp_path, OLD, footer).make_torch_dataloader(
        batch_size=4, num_epochs=1, shuffle=False
    ) as loader:
        (batch,) = loader
    assert batch["when"].tolist() == [-141427, -141427, -141428, -141428]


def test_a_column_of_nulls_alone_has_no_early_value(tmp_path, monkeypatch):
    def scanned(*_: object, **__: object) -> None:
        raise AssertionError("its statistics say it: nothing needs to be read")

    monkeypatch.setattr("sparkdl_runner.data.dataset.legacy_calendar.scan", scanned)
    nulls = pa.table({"id": [1, 2], "when": pa.nulls(2, pa.date32())})
    pq.write_table(nulls.replace_schema_metadata(SPARK_2), tmp_path / "a.parquet")
    assert len(make_spark_converter(f"file://{tmp_path}", allow_nulls=True)) == 2
