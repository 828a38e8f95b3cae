"""Reads views (``string_view`` and the like) as the plain types that they have the values of.

Arrow's writers keep their own types beside Parquet's, as an Arrow schema in base64. There is no
view in Parquet: with another name in that schema the same bytes are read as plain texts, by every
Arrow. Old ones do not know the names, and call the whole footer broken.

The schema is a flatbuffer: https://arrow.apache.org/docs/format/Columnar.html#schema-message
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_KEY = b"\x0cARROW:schema\x18"
"""The key, its length before it and the type of the value after it, by Thrift."""
_HIDDEN_KEY = _KEY.replace(b"schema", b"hidden")
_PLAIN = {23: 4, 24: 5, 25: 12, 26: 21}
"""The numbers of the types: BinaryView, Utf8View, ListView and LargeListView; and the plain ones.
None of them has anything more to say, so that no other byte changes."""
_FIELDS, _TYPE, _CHILDREN = 1, 2, 5


def read_metadata(footer: bytes | memoryview) -> pq.FileMetaData:
    """A footer, parsed, without views."""
    # As pq.read_metadata, which costs more: it looks twice for a filesystem.
    return pq.ParquetFile(pa.BufferReader(without_views(footer))).metadata


def metadata_of(stream: Any) -> pq.FileMetaData:
    """The footer of an open file, parsed, without views."""
    size = stream.size()
    length = int.from_bytes(stream.read_at(8, max(0, size - 8))[:4], "little") + 8
    return read_metadata(stream.read_at(min(length, size), max(0, size - length)))


def without_arrow_schema(footer: bytes) -> bytes:
    """A footer whose Arrow schema goes by another name, so that Arrow does not decode it.

    That takes a third of the time to parse a small footer, and says the same in all files of a
    folder. Pages and statistics are read by Parquet's own schema.
    """
    before, key, after = footer.rpartition(_KEY)
    return before + _HIDDEN_KEY + after if key else footer


def without_views(footer: bytes | memoryview) -> bytes:
    """A footer whose Arrow schema, if there is one, has no views; of the same length."""
    footer = bytes(footer)
    place = footer.find(_KEY)
    if place < 0:
        return footer
    length, start = 0, place + len(_KEY)
    for shift in range(0, 35, 7):
        byte = footer[start]
        length |= (byte & 127) << shift
        start += 1
        if byte < 128:
            break
    text = footer[start : start + length]
    plain = _without_views(text)
    return footer if plain == text else footer[:start] + plain + footer[start + length :]


@functools.lru_cache(maxsize=8)  # The files of a folder have one schema, and may be many.
def _without_views(text: bytes) -> bytes:
    try:
        schema = bytearray(base64.b64decode(text, validate=True))
        places = [place for place in _types(schema) if schema[place] in _PLAIN]
    except (ValueError, IndexError, struct.error):
        return text  # Arrow says what is wrong with it.
    for place in places:
        schema[place] = _PLAIN[schema[place]]
    return base64.b64encode(schema) if places else text


def _types(schema: bytearray) -> Iterator[int]:
    """Where the number of each field's type is, also of fields within fields."""
    start = 8 if schema[:4] == b"\xff\xff\xff\xff" else 4  # before the message's own length
    message = start + _number(schema, start)
    header = _slot(schema, message, 2)
    tables = list(_tables(schema, header + _number(schema, header), _FIELDS))
    seen: set[int] = set()
    while tables:
        field = tables.pop()
        if field in seen:
            raise ValueError("a field within itself")
        seen.add(field)
        place = _slot(schema, field, _TYPE)
        if place:
            yield place
        tables.extend(_tables(schema, field, _CHILDREN))


def _tables(schema: bytearray, table: int, number: int) -> Iterator[int]:
    """The tables in a list of a table."""
    slot = _slot(schema, table, number)
    if slot:
        first = slot + _number(schema, slot)
        for index in range(_number(schema, first)):
            place = first + 4 + 4 * index
            yield place + _number(schema, place)


def _slot(schema: bytearray, table: int, number: int) -> int:
    """Where a table has its field of this number; 0 if it lacks it."""
    slots = table - struct.unpack_from("<i", schema, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", schema, slots)[0]:
        return 0
    offset = struct.unpack_from("<H", schema, slots + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _number(schema: bytearray, place: int) -> int:
    return int(struct.unpack_from("<I", schema, place)[0])
