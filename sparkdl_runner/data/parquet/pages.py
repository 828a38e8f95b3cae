"""The header of a page of a Parquet file."""

from __future__ import annotations

from typing import NamedTuple

HEADER_BYTES = 32
"""What ``page_of`` needs of one."""
_NUMBER, _STRUCT = 0x15, 12


class Page(NamedTuple):
    """The size of a page without compression, and its number of values, by its header."""

    size_bytes: int
    value_count: int


def page_of(header: bytes) -> Page:
    """What a PageHeader of https://github.com/apache/parquet-format says.

    It begins with its kind and the bytes without compression. A few numbers later comes a struct,
    which begins with the number of values. Each number is a byte 0x15 and a zigzag varint.
    """
    numbers: list[int] = []
    place, before = 0, 0
    while place < len(header) and not (before and len(numbers) > before):
        kind, place = header[place], place + 1
        if kind & 15 == _STRUCT and len(numbers) > 1:
            before = len(numbers)
        elif kind == _NUMBER:
            number, shift, byte = 0, 0, 128
            while byte > 127 and place < len(header):
                byte, place = header[place], place + 1
                number, shift = number | (byte & 127) << shift, shift + 7
            numbers.append(number >> 1)
        else:
            break
    return Page(numbers[1], numbers[-1]) if before else Page(1 << 31, 1 << 31)
