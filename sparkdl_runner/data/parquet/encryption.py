"""Finds the encrypted columns of a Parquet file: Arrow ends the process when it meets one.

A footer that is not encrypted itself is signed. Only then are its bytes looked at here, by the
fields of https://github.com/apache/parquet-format/blob/master/Encryption.md.
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

_SIGNATURE_BYTES = 28
_END_BYTES = 8
"""After the footer: its length, and ``PAR1``."""
_ROW_GROUPS, _COLUMNS, _CRYPTO_METADATA, _WITH_COLUMN_KEY, _PATH = 4, 1, 8, 2, 1
_MOST_DEPTH = 32


def encrypted_columns(metadata: pq.FileMetaData, tail: bytes) -> list[str]:
    """The leaves of a file that have keys of their own, by their paths, joined by dots.

    Args:
        metadata: The footer.
        tail: Its bytes, to the end of the file.

    Raises:
        ValueError: The bytes are no footer.
    """
    if len(tail) - _END_BYTES - metadata.serialized_size != _SIGNATURE_BYTES:
        return []
    footer = _Thrift(tail).struct(0)
    paths = {
        ".".join(part.decode(errors="replace") for part in key.get(_PATH, []))
        for group in footer.get(_ROW_GROUPS, [])
        for column in group.get(_COLUMNS, [])
        if (key := column.get(_CRYPTO_METADATA, {}).get(_WITH_COLUMN_KEY)) is not None
    }
    return sorted(paths)


class _Thrift:
    """Reads structs of Thrift's compact protocol: a dict by the numbers of their fields.

    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def _take(self, size: int) -> bytes:
        self._place += size
        if size < 0 or self._place > len(self._content):
            raise ValueError("it ends too early")
        return self._content[self._place - size : self._place]

    def _varint(self) -> int:
        number, shift, byte = 0, 0, 128
        while byte > 127:
            byte = self._take(1)[0]
            number, shift = number | (byte & 127) << shift, shift + 7
            if shift > 70:
                raise ValueError("a number is too long")
        return number

    def struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            step, kind = head >> 4, head & 15
            number = number + step if step else self._varint() >> 1
            # A bool is in its field's head.
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if kind in (1, 2, 3):
            return self._take(1)
        if kind in (4, 5, 6):
            return self._varint()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            head = self._take(1)[0]
            count = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth)
        raise ValueError(f"it has a value of kind {kind}")
