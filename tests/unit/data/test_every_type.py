"""Any table of any type with any option: what pyarrow's ``to_pylist`` says, or a sentence."""

from __future__ import annotations

import datetime
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parquet_sets import load, one

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import DatasetError
from training_tables import converter_of

EPOCH = datetime.datetime(1970, 1, 1)
WORDS = (str, bytes)
LONGEST = 3

small = st.integers(0, 100)
days = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
moments = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
spans = st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((pa.type_for_alias(f"{sign}int{bits}"), small) for sign in ("", "u") for bits in (8, 64)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.date32(), days),
    (pa.timestamp("us"), moments),
    (pa.timestamp("ms"), moments.map(lambda one: one.replace(microsecond=0))),
    (pa.duration("us"), spans),
    (pa.time64("us"), st.times()),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.string(), st.text(max_size=3).filter(lambda text: text.isprintable())),
    (pa.large_string(), st.sampled_from(["", "ä", "abc"])),
    (pa.binary(), st.binary(max_size=3)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"pad": {"x": 2}},
    {"pad": {"x": "longest"}},
    {"ragged": ["x"]},
    {"pack": {"x": LONGEST}},
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """Some rows of a column: alike, ragged, empty, null, or all of these."""
    arrow_type, values = draw(st.sampled_from(LEAVES))
    maybe_null = draw(st.booleans())
    for _ in range(draw(st.integers(0, 2))):
        if maybe_null:
            values = st.none() | values
        least, most = draw(st.sampled_from([(0, 0), (1, 1), (2, 2), (0, LONGEST)]))
        values = st.lists(values, min_size=least, max_size=most)
        arrow_type = pa.list_(arrow_type)
    values = draw(st.sampled_from([values, st.none() | values, st.none()]))
    return arrow_type, draw(st.lists(values, min_size=1, max_size=4))


def number(value: Any) -> Any:
    """A value as a tensor has it."""
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()).days
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(EPOCH, value) - EPOCH
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    return float(str(value)) if isinstance(value, Decimal) else value


def flat(value: Any, depth: int) -> list[Any]:
    """The values of nested lists, nulls among them, and null for each null list."""
    if depth == 0 or value is None:
        return [value]
    return [leaf for one in value for leaf in flat(one, depth - 1)]


def shape_of(rows: list[Any], depth: int) -> list[set[int]]:
    """The lengths that lists have, at each depth."""
    found: list[set[int]] = []
    for _ in range(depth):
        rows = [row for row in rows if row is not None]
        found.append({len(row) for row in rows})
        rows = [one for row in rows for one in row]
    return found


def expected(kind: pa.DataType, rows: list[Any], nulls: str, option: dict[str, Any]) -> Any:
    """The entries of a batch by what follows ``x`` in their names; None if it is refused."""
    depth, inner = 0, kind
    while pa.types.is_list(inner):
        depth, inner = depth + 1, inner.value_type
    has_nulls = any(value is None for row in rows for value in flat(row, depth))
    lengths = shape_of(rows, depth)
    nothing: Any = {pa.string(): "", pa.large_string(): ""}.get(inner, 0)
    if pa.types.is_binary(inner) or pa.types.is_fixed_size_binary(inner):
        nothing = b""
    if has_nulls and nulls == "error":
        return None
    if isinstance(nothing, WORDS):
        if option or (has_nulls and nulls != "fill"):
            return None
        return {"": [filled(row, depth, None, nothing) for row in rows]}
    if has_nulls and nulls == "nan":
        if not (pa.types.is_floating(inner) or pa.types.is_decimal(inner)):
            return None
        nothing = math.nan
    if not depth:
        if "pack" in option:
            return None
        masks = (
            {"_mask": [row is not None for row in rows]} if has_nulls and nulls == "mask" else {}
        )
        return {"": [filled(row, 0, None, nothing) for row in rows], **masks}
    if any(len(found) > 1 for found in lengths[1:]):
        return None
    rest = [max(found, default=0) for found in lengths[1:]]
    if not option:
        if len(lengths[0]) > 1:
            return None
        whole = [max(lengths[0], default=0), *rest]
        result = {"": [filled(row, depth, whole, nothing) for row in rows]}
        if has_nulls and nulls == "mask":
            result["_mask"] = [known(row, depth, whole) for row in rows]
        return result
    if has_nulls and nulls == "mask":
        return None
    lists = [[filled(one, depth - 1, rest, nothing) for one in row or ()] for row in rows]
    sizes = [len(row) for row in lists]
    if option.get("pad") == {"x": 2}:
        zero = filled(None, depth - 1, rest, 0)
        return {
            "": [(row + 2 * [zero])[:2] for row in lists],
            "_length": [min(2, size) for size in sizes],
        }
    if depth > 1:
        return None
    if "ragged" in option:
        if has_nulls and nulls == "nan":
            return None
        offsets = np.cumsum([0, *sizes]).tolist()
        return {"": [one for row in lists for one in row], "_offsets": offsets}
    if "pad" in option:
        longest = max(1, *sizes)
        return {"": [row + [0] * (longest - len(row)) for row in lists], "_length": sizes}
    return {"documents": [row for row in lists if row]}


def filled(value: Any, depth: int, lengths: list[int] | None, nothing: Any) -> Any:
    """A row with nulls filled: a null list has as many values as others, or none."""
    if depth == 0:
        return nothing if value is None else number(value)
    if value is None:
        value = [] if lengths is None else [None] * lengths[0]
    inner = None if lengths is None else lengths[1:]
    return [filled(one, depth - 1, inner, nothing) for one in value]


def known(value: Any, depth: int, lengths: list[int]) -> Any:
    if depth == 0:
        return value is not None
    return [known(one, depth - 1, lengths[1:]) for one in value or [None] * lengths[0]]


def plain(value: Any) -> Any:
    """An entry of a batch as Python's values."""
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


def same(found: Any, wanted: Any) -> bool:
    """Equal, and NaN to NaN."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(found)
    return bool(found == wanted)


def documents(batch: dict[str, Any]) -> list[Any]:
    ids = np.asarray(batch["x_document_ids"])
    return [np.asarray(batch["x"])[ids == one].tolist() for one in np.unique(ids[ids > 0])]


def check_sentence(error: Exception) -> None:
    assert isinstance(error, DatasetError | ValueError), repr(error)
    assert "'x'" in str(error), error
    assert str(error).endswith("."), error


def entries(
    folder: Path, manifest: Manifest, device: str, options: dict[str, Any]
) -> dict[str, Any] | Exception:
    """All rows as one batch of Python's values, by a loader or by number."""
    try:
        if device == "rows":
            data = converter_of(folder).make_map_dataset(**options)
            rows = data.__getitems__(range(len(data)))
            data.close()
            return {name: [plain(row[name]) for row in rows] for name in rows[0]}
        order = {"shuffle": False, "tail": "uneven", "batch_size": manifest.rows}
        with load(folder, manifest, device=device, **order, **options) as loader:
            (batch,) = list(loader)
        return {name: plain(value) for name, value in batch.items()}
    except (DatasetError, ValueError) as error:
        return error


@settings(max_examples=40, deadline=None)
@given(
    column=columns(),
    nulls=st.sampled_from(["error", "fill", "nan", "mask"]),
    option=st.sampled_from(OPTIONS),
    device=st.sampled_from(["numpy", "cpu", "rows"]),
)
@example(column=(pa.list_(pa.int64()), [[], []]), nulls="error", option={}, device="numpy")
@example(column=(pa.list_(pa.int64()), [None, None]), nulls="mask", option={}, device="cpu")
@example(
    column=(pa.list_(pa.list_(pa.float32())), [[[], []], []]),
    nulls="error",
    option={"pad": {"x": 2}},
    device="rows",
)
def test_a_column_is_what_pyarrow_says_or_refused_in_a_sentence(
    column: tuple[pa.DataType, list[Any]], nulls: Any, option: dict[str, Any], device: str
) -> None:
    kind, values = column
    table = pa.table({"x": pa.array(values, kind)})
    wanted = expected(kind, table["x"].to_pylist(), nulls, option)
    by_batch = "pack" in option or option.get("pad") == {"x": "longest"}
    if device == "rows" and by_batch and pa.types.is_list(kind):
        wanted = None
    options = {"nulls": nulls, **option}
    with tempfile.TemporaryDirectory() as name:
        manifest = one(Path(name), table, 3)
        found = entries(Path(name), manifest, device, {"decimals": "float64", **options})
    if isinstance(found, Exception):
        check_sentence(found)
        assert wanted is None, found
        return
    assert wanted is not None
    if "_offsets" in wanted and device == "rows":  # Each row is a tensor of its own.
        found, wanted = {"x": [value for row in found["x"] for value in row]}, {"": wanted[""]}
    if "documents" in wanted:
        found = {"xdocuments": documents(found)}
    assert len(found) == len(wanted)
    for ending, value in wanted.items():
        assert same(found[f"x{ending}"], value), ending
