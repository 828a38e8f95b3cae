"""Pickles functions and classes by value, with the file, lines and source of their code.

cloudpickle 3.1.3 replaces the names of files by ``<dynamic-code>``. A rank's traceback, warnings
and stacks are to show the user's own lines, also those of a notebook's cell, which no file of the
rank's host holds. So code travels with its name and its source lines.
"""

from __future__ import annotations

import io
import linecache
import pickle
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import cloudpickle

# Longer ones are not code that a person wrote.
MAX_SOURCE_CHARACTERS = 1 << 18

_reduce_code: Callable[[types.CodeType], tuple[Any, ...]] = cloudpickle.Pickler.dispatch_table[
    types.CodeType
]


def dumps(value: Any) -> bytes:
    """Pickles a value; what cannot be imported by its name travels by value."""
    with io.BytesIO() as file:
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return file.getvalue()


def reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """The reduction of a code object that keeps its file's name and its source lines."""
    return make_code, (_reduce_code(code)[1], code.co_filename, source_of(code))


def make_code(parts: tuple[Any, ...], filename: str, source: str) -> types.CodeType:
    """Rebuilds what ``reduce_code`` took apart, and keeps the lines for tracebacks."""
    code = types.CodeType(*parts).replace(co_filename=filename)
    if source:
        keep_lines(filename, code.co_firstlineno, source)
    return code


def source_of(code: types.CodeType) -> str:
    """The source lines of a code object, as this process knows them; else an empty text."""
    last = max(_lines_of(code), default=0)
    lines = linecache.getlines(code.co_filename)[max(code.co_firstlineno - 1, 0) : last]
    source = "".join(lines)
    return source if len(source) <= MAX_SOURCE_CHARACTERS else ""


def keep_lines(filename: str, first: int, source: str) -> None:
    """Makes ``linecache``, which tracebacks and warnings ask, know some lines of a file.

    Args:
        filename: The file's name, which may name no file of this host.
        first: The number of the first line, from 1.
        source: The lines.
    """
    added = source.splitlines(keepends=True)
    known = linecache.getlines(filename)
    if known[first - 1 : first - 1 + len(added)] == added:
        return
    lines = known + ["\n"] * (first - 1 - len(known))
    lines[first - 1 : first - 1 + len(added)] = added
    # Without a time, linecache does not look for a newer file.
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)


def _lines_of(code: types.CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _lines_of(constant)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap(
        {types.CodeType: reduce_code}, cloudpickle.Pickler.dispatch_table
    )
