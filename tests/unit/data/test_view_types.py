"""Texts and lists that a writer calls views are read as plain ones, by every Arrow."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.parquet import arrow_schema

_PLAIN = {4: 23, 5: 24, 12: 25, 21: 26}


def with_views(path: Path, table: pa.Table) -> None:
    """Writes a file whose Arrow schema has views in the place of all texts, bytes and lists.

    Old Arrow writes none, and needs the file to be read.
    """
    pq.write_table(table, path)
    content = path.read_bytes()
    [text] = re.findall(rb"ARROW:schema\x18..?([A-Za-z0-9+/=]{40,})", content, re.DOTALL)
    schema = bytearray(base64.b64decode(text))
    for place in list(arrow_schema._types(schema)):
        schema[place] = _PLAIN.get(schema[place], schema[place])
    assert base64.b64encode(schema) != text
    path.write_bytes(content.replace(text, base64.b64encode(schema)))


TABLE = pa.table(
    {
        "id": range(4),
        "text": list("abcd"),
        "bytes": [b"a", b"b", b"c", b"d"],
        "list": [[1, 2], [3, 4], [5, 6], [7, 8]],
        "texts": [["a"], ["b"], ["c"], ["d"]],
        "elapsed": pa.array(range(4), pa.duration("ms")),
    }
)


def rows_of(place: Any, **arguments: Any) -> list[tuple[Any, ...]]:
    found = []
    converter = make_spark_converter(place, **arguments)
    with converter.make_torch_dataloader(2, num_epochs=1, shuffle=False) as loader:
        for batch in loader:
            values = [one if isinstance(one, list) else one.tolist() for one in batch.values()]
            found += list(zip(*values, strict=True))
    return found


def test_views_are_read_as_what_they_are_views_of(tmp_path: Path) -> None:
    for folder, write in (
        ("plain", lambda path, table: pq.write_table(table, path)),
        ("views", with_views),
    ):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.parquet", TABLE)
    plain, views = tmp_path / "plain", tmp_path / "views"
    assert rows_of(views) == rows_of(plain)
    assert rows_of(views, columns=["id"]) == [(i,) for i in range(4)]
    some = {"columns": ["id", "elapsed"], "filters": [("text", ">", "b")]}
    assert rows_of(views, **some) == rows_of(plain, **some) == [(2, 2000), (3, 3000)]


@pytest.mark.parametrize("cut", [4, 9, 40, 200])
def test_a_broken_schema_is_left_to_arrow(tmp_path: Path, cut: int) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    start = content.index(b"ARROW:schema") + 15
    for filler in (b"A", b"/", b"!"):
        broken = content[: start + cut] + filler * 60 + content[start + cut + 60 :]
        assert arrow_schema.without_views(broken) == broken or filler == b"/"
        assert len(arrow_schema.without_views(broken)) == len(broken)
    assert arrow_schema.without_views(b"PAR1") == b"PAR1"
