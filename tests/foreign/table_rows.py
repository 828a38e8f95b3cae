"""The rows of a file or table, as this package gives them and as other readers do.

Both become columns of plain values that can be compared: dates are days, times and timestamps
are microseconds, decimals are the floats that their texts read as. What a null of texts or lists
becomes, "" or [], is the same as null; one inside of a list is 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Columns = dict[str, list[Any]]
NULL = "null"


def ours(source: str) -> tuple[Columns, dict[str, BaseException]]:
    """What this package reads, and by column why it does not read it.

    Raises:
        Exception: What made it read no column at all.
    """
    from sparkdl_runner.data import make_spark_converter

    converter = make_spark_converter(source, allow_nulls=True)
    names = [column.name for column in converter.open().manifest.columns]
    found: Columns = {}
    refused: dict[str, BaseException] = {}
    for name in names:
        try:
            found[name] = _our_column(converter, name)
        except Exception as error:
            refused[name] = error
    return found, refused


def _our_column(converter: Any, name: str) -> list[Any]:
    """A column, by the first of the options that fits it."""
    first: Exception | None = None
    for nulls in ("mask", "fill"):
        for ragged in ([], [name]):
            try:
                return list(_our_values(converter, name, nulls, ragged))
            except Exception as error:
                first = first or error
    assert first is not None
    raise first


def _our_values(converter: Any, name: str, nulls: str, ragged: list[str]) -> Iterator[Any]:
    with converter.make_torch_dataloader(
        batch_size=1000,
        num_epochs=1,
        shuffle=False,
        tail="uneven",
        columns=[name],
        nulls=nulls,
        ragged=ragged,
        decimals="float64",
        device="numpy",
        cache_type="null",
    ) as loader:
        for batch in loader:
            values = batch[name]
            if ragged:
                yield from map(_plain, _lists(values.tolist(), batch[f"{name}_offsets"].tolist()))
                continue
            mask = batch.get(f"{name}_mask")
            values = values.tolist() if hasattr(values, "tolist") else values
            for at, value in enumerate(values):
                yield NULL if mask is not None and not mask[at].any() else _plain(value)


def _lists(values: list[Any], offsets: list[int]) -> Iterator[list[Any]]:
    for begin, end in pairwise(offsets):
        yield values[begin:end]


def _plain(value: Any) -> Any:
    if value is None or value in ("", b"", []):
        return NULL
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value


def of_table(table: pa.Table, names: Collection[str]) -> Columns:
    """Columns of another reader's table; those that it lacks are left out."""
    return {
        name: [value for chunk in column.chunks for value in map(_plain, _values(chunk))]
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name in names
    }


def _values(array: pa.Array, *, is_inner: bool = False) -> list[Any]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode(), is_inner=is_inner)
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage, is_inner=is_inner)
    if hasattr(kind, "value_type"):
        return _list_values(array)
    if pa.types.is_decimal(kind):
        found: list[Any] = [None if v is None else float(str(v)) for v in array.to_pylist()]
    elif pa.types.is_date(kind):
        found = array.cast(pa.date32()).cast(pa.int32()).to_pylist()
    elif pa.types.is_timestamp(kind):
        found = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
    elif pa.types.is_time(kind) or pa.types.is_duration(kind):
        array = array.cast(pa.time64("us")) if pa.types.is_time(kind) else array
        found = array.cast(pa.int64()).to_pylist()
    else:
        found = array.to_pylist()
    is_number = not (pa.types.is_nested(kind) or pa.types.is_string(kind) or _is_binary(kind))
    return [0 if value is None else value for value in found] if is_inner and is_number else found


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or "string" in str(kind)


def _list_values(array: pa.Array) -> list[Any]:
    lengths = pc.list_value_length(array).to_pylist()
    if pa.types.is_fixed_size_list(array.type):  # flatten() leaves out those of nulls, or not.
        array = array.cast(pa.list_(array.type.value_field))
    inner = _values(array.flatten(), is_inner=True)
    rows, at = [], 0
    for length in lengths:
        rows.append(None if length is None else inner[at : at + length])
        at += length or 0
    return rows


def _by_pyarrow(source: str, names: Collection[str]) -> Columns:
    file = pq.ParquetFile(_only_file(source), coerce_int96_timestamp_unit="us")
    return of_table(file.read(), names)


def _by_duckdb(source: str, names: Collection[str]) -> Columns:
    import duckdb

    path = str(_only_file(source)).replace("'", "''")
    duckdb.sql("SET TimeZone = 'UTC'")
    found = duckdb.sql(f"SELECT * FROM read_parquet('{path}', hive_partitioning = false)")
    return of_table(found.to_arrow_table(), names)


def _only_file(source: str) -> Path:
    (path,) = Path(source).iterdir()
    return path


def _by_delta_rs(source: str, names: Collection[str]) -> Columns:
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("t", DeltaTable(source)).execute("SELECT * FROM t").read_all()
    try:
        return of_table(pa.table(found), names)
    except pa.ArrowInvalid:  # Old Arrows know no views of texts, which DuckDB copies.
        import duckdb

        return of_table(duckdb.sql("SELECT * FROM found").to_arrow_table(), names)


def _by_pyiceberg(source: str, names: Collection[str]) -> Columns:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(newest_metadata(Path(source)))
    return of_table(table.scan().to_arrow(), names)


def newest_metadata(table: Path) -> str:
    """The metadata file of an Iceberg table that was changed last."""
    found = (table / "metadata").glob("*.metadata.json")
    return str(max(found, key=lambda path: json.loads(path.read_text())["last-updated-ms"]))


READERS: dict[str, dict[str, Callable[[str, Collection[str]], Columns]]] = {
    "parquet": {"pyarrow": _by_pyarrow, "DuckDB": _by_duckdb},
    "delta": {"delta-rs": _by_delta_rs},
    "iceberg": {"pyiceberg": _by_pyiceberg},
}
"""By kind of source the others that read it. Each gives the columns of certain names."""
