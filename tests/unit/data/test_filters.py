"""``filters=`` keeps exactly the rows that pyarrow keeps, whatever the row groups are."""

from __future__ import annotations

import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.dataset.view.bounds import min_max
from sparkdl_runner.data.dataset.view.filter_values import floor_as

_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "whole": (pa.int32(), st.integers(-3, 3)),
    "real": (pa.float64(), st.sampled_from([-1.5, 0.0, 1.0, 2.5, float("nan")])),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "é", "a" * 80])),
    "day": (pa.date32(), st.dates(date(2024, 1, 1), date(2024, 1, 5))),
    "money": (pa.decimal128(5, 2), st.sampled_from([Decimal("1.50"), Decimal("-2.25")])),
    "truth": (pa.bool_(), st.booleans()),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, int]:
    rows = draw(st.integers(1, 12))
    columns = {
        name: pa.array(draw(st.lists(st.none() | one, min_size=rows, max_size=rows)), kind)
        for name, (kind, one) in _VALUES.items()
    }
    number = pa.array(range(rows), pa.int64())
    return pa.table({"number": number, **columns}), draw(st.integers(1, 5))


@st.composite
def conditions(draw: st.DrawFn) -> list[Any]:
    def one() -> tuple[str, str, Any]:
        name = draw(st.sampled_from(sorted(_VALUES)))
        value = _VALUES[name][1].filter(lambda v: v == v)
        ordered = ["<", "<=", ">", ">="] if name != "truth" else []
        operator = draw(st.sampled_from(["=", "==", "!=", *ordered, "in", "not in"]))
        many = operator in ("in", "not in")
        return name, operator, draw(st.lists(value, min_size=1, max_size=3) if many else value)

    clauses = [
        [one() for _ in range(draw(st.integers(1, 2)))] for _ in range(draw(st.integers(1, 2)))
    ]
    return clauses if draw(st.booleans()) else clauses[0]


@settings(max_examples=25, deadline=None)
@given(tables(), conditions())
def test_the_rows_are_those_that_pyarrow_keeps(made: Any, filters: list[Any]) -> None:
    table, group_rows = made
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/a.parquet", row_group_size=group_rows)
        # In memory: by a file's statistics, which say nothing of NaN, pyarrow loses rows of it.
        expected = table.filter(pq.filters_to_expression(filters))["number"].to_pylist()
        if not expected:
            with pytest.raises(DatasetError, match="There is no row that fulfils"):
                make_spark_converter(folder, filters=filters)
            return
        converter = make_spark_converter(folder, filters=filters, columns=["number"])
        with converter.make_torch_dataloader(4, num_epochs=1, tail="uneven") as loader:
            assert sorted(int(n) for batch in loader for n in batch["number"]) == expected


@pytest.mark.parametrize("asked", [0, 0.0, -0.0])
@pytest.mark.parametrize("group_rows", [1, 4])
def test_both_zeros_are_one_number_in_a_list_too(
    tmp_path: Path, asked: float, group_rows: int
) -> None:
    table = pa.table({"id": range(4), "real": [0.0, -0.0, 1.0, 2.0]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group_rows)
    for operator, value, rows in (("=", asked, 2), ("in", [asked, 1], 3), ("not in", [asked], 2)):
        found = make_spark_converter(tmp_path, filters=[("real", operator, value)])
        assert found.dataset_size == rows


def test_row_groups_are_passed_over_by_their_statistics(tmp_path: Path) -> None:
    table = pa.table({"id": range(1000), "other": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    decided = make_spark_converter(tmp_path, filters=[("id", ">=", 300), ("id", "<", 500)])
    assert decided._manifest.row_groups.index_in_file.tolist() == [3, 4]
    assert decided._manifest.view.live.bits == {}
    read = make_spark_converter(tmp_path, filters=[("id", ">", 350), ("id", "<", 500)])
    assert read._manifest.row_groups.rows.tolist() == [49, 100]
    assert list(read._manifest.view.live.bits) == [0]


def test_the_state_is_of_these_filters(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet", row_group_size=10)

    def loader(filters: list[Any]) -> Any:
        converter = make_spark_converter(tmp_path, filters=filters)
        return converter.make_torch_dataloader(global_batch_size=4, num_epochs=1).__enter__()

    with loader([("id", "<", 55)]) as first:
        batches = iter(first)
        begun = [int(i) for _ in range(5) for i in next(batches)["id"]]
        state = first.state_dict()
    with loader([("id", "<", 55)]) as second:
        second.load_state_dict(state)
        rest = [int(i) for batch in second for i in batch["id"]]
    assert sorted(begun + rest) == list(range(55))
    # As many rows of the same row groups, and other ones.
    with loader([("id", "<", 56), ("id", "!=", 54)]) as other, pytest.raises(DatasetError):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"filters": "id > 3"}, "expected a list such as"),
        ({"filters": []}, "expected a list such as"),
        ({"filters": [("id", ">")]}, "expected a list such as"),
        ({"filters": [("idd", ">", 3)]}, "no such column; did you mean 'id'"),
        ({"filters": [("id", "~", 3)]}, "expected one of =, ==, !="),
        ({"filters": [("id", "in", 3)]}, "takes a list of values"),
        ({"filters": [("id", "=", None)]}, "which nothing equals"),
        ({"filters": [("id", "=", "three")]}, "'id', which is int64, with 'three'"),
        ({"columns": ["id", "id"]}, "each once"),
        ({"columns": ["no"]}, "names 'no', which is none of id"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, arguments: Any, sentence: str) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    with pytest.raises((TypeError, ValueError), match=sentence):
        make_spark_converter(tmp_path, **arguments)


def kept(place: Path, *filters: Any) -> int:
    """How many rows are left; 0 where that is refused."""
    try:
        return make_spark_converter(place, filters=list(filters)).dataset_size
    except DatasetError as error:
        if "There is no row that fulfils" not in str(error):
            raise
        return 0


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rows of each type: the second is the one of the middle."""
    times = [datetime(2024, 1, day, 12) for day in (1, 2, 3)]
    folder = tmp_path_factory.mktemp("typed")
    columns = {
        "price": pa.array([Decimal("-1.00"), Decimal("99.99"), Decimal("100.00")]).cast(
            pa.decimal128(5, 2)
        ),
        "long": [-5, 2**53 + 1, 2**62 + 1],
        "unsigned": pa.array([0, 5, 2**63 + 5], pa.uint64()),
        "small": pa.array([-128, 0, 127], pa.int8()),
        "float": pa.array([0.05, 0.1, 0.2], pa.float32()),
        "day": [date(2024, 1, day) for day in (1, 2, 3)],
        "local": pa.array(times, pa.timestamp("us")),
        "utc": pa.array(times, pa.timestamp("us", "UTC")),
        "truth": [False, True, True],
    }
    for name, rows in (("one", 1), ("three", 3)):  # By statistics alone, and by rows.
        (folder / name).mkdir()
        pq.write_table(pa.table(columns), folder / name / "a.parquet", row_group_size=rows)
    return folder


@pytest.mark.parametrize(
    ("column", "operator", "value", "rows"),
    [
        ("price", "<", 100, 2),
        ("price", "<", 99.995, 2),
        ("price", ">=", "99.99", 2),
        ("price", "=", 99.99, 1),
        ("price", "=", 99.995, 0),
        ("price", "!=", 99.995, 3),
        ("price", "<", 10**40, 3),
        ("price", ">", -(10**40), 3),
        ("price", "in", [100, 1e9, "99.99"], 2),
        ("price", "not in", [1000], 3),
        ("long", ">", 2.5, 2),
        ("long", ">", float(2**53), 2),
        ("long", "<", 2**80, 3),
        ("long", "in", ["-5", 2.5, 2**80], 1),
        ("unsigned", ">", -1, 3),
        ("unsigned", ">=", 2**63, 1),
        ("small", "<", 1000, 3),
        ("small", "in", [1000, 127], 1),
        ("float", "=", 0.1, 1),
        ("float", "in", [0.1], 1),
        ("float", ">", Decimal("0.1"), 1),
        ("day", "<=", datetime(2024, 1, 2, 12), 2),
        ("day", "<", "2024-01-02T00:00:01", 2),
        ("day", "=", "2024-01-02", 1),
        ("local", ">=", "2024-01-02", 2),
        ("local", "=", "2024-01-02T12:00:00", 1),
        ("utc", "=", "2024-01-02T14:00:00+02:00", 1),
        ("utc", "<", date(2024, 1, 3), 2),
        ("utc", "in", ["2024-01-02 12:00:00", "2024-01-03T12:00:00Z"], 2),
        ("truth", "=", 1, 2),
    ],
)
def test_values_are_compared_as_the_columns_are(
    typed: Path, column: str, operator: str, value: Any, rows: int
) -> None:
    for name in ("one", "three"):
        assert kept(typed / name, (column, operator, value)) == rows, name


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("truth", 5),
        ("price", "cheap"),
        ("price", "NaN"),
        ("day", 5),
        ("day", datetime(2024, 1, 2, tzinfo=UTC)),
        ("local", 5),
        ("local", "noon"),
        ("small", date(2024, 1, 2)),
    ],
)
def test_values_that_a_column_cannot_be_compared_with(typed: Path, column: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"filters compares '{column}', which is "):
        make_spark_converter(typed / "one", filters=[(column, "=", value)])


@pytest.mark.parametrize("column", ["moment", "length"])
@pytest.mark.parametrize(("operator", "rows"), [("=", [1]), ("<", [0]), (">", [2])])
def test_nanoseconds_count(tmp_path: Path, column: str, operator: str, rows: list[int]) -> None:
    ticks = [1_000, 1_001, 1_002]
    table = {
        "id": range(3),
        "moment": pa.array(ticks, pa.timestamp("ns")),
        "length": pa.array(ticks, pa.duration("ns")),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    value = pd.Timestamp(1_001) if column == "moment" else pd.Timedelta(1_001)
    filters = [(column, operator, value)]
    converter = make_spark_converter(tmp_path, filters=filters)
    with converter.make_torch_dataloader(batch_size=1, num_epochs=1, columns=["id"]) as loader:
        assert [int(batch["id"]) for batch in loader] == rows


def test_a_time_in_a_coarser_unit_has_no_nanoseconds() -> None:
    moment, length = datetime(1970, 1, 1, microsecond=1), timedelta(microseconds=1)
    assert floor_as(moment, pa.timestamp("ns")) == (pd.Timestamp(1_000), True)
    assert floor_as(length, pa.duration("ns")) == (pd.Timedelta(1_000), True)
    assert floor_as(pd.Timestamp(1_001), pa.timestamp("us")) == (moment, False)


def test_statistics_that_arrow_cannot_show_are_unknown() -> None:
    class Statistics:
        has_min_max = True

        @property
        def min(self) -> Any:
            raise pa.ArrowNotImplementedError("Cannot extract statistics for type")

    assert min_max(Statistics()) is None
    assert min_max(None) is None


def test_a_row_group_without_rows(tmp_path: Path) -> None:
    table = pa.table({"id": range(5)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    assert pq.read_metadata(tmp_path / "b.parquet").num_row_groups == 1
    assert kept(tmp_path, ("id", ">", 1), ("id", "!=", 3)) == 2
    assert kept(tmp_path, ("id", "in", [1, 7])) == 1


def test_a_dictionary_of_texts_is_filtered_and_read(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"id": range(3), "text": texts}), tmp_path / "a.parquet")
    some = make_spark_converter(tmp_path, filters=[("text", "=", "a")], columns=["text"])
    with some.make_torch_dataloader(2, num_epochs=1) as loader:
        assert [batch["text"] for batch in loader] == [["a", "a"]]
