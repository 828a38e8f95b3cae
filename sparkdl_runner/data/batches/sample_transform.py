"""Applies a function to each row of a chunk, in threads, and puts the results into batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparkdl_runner.data.batches.chunks import Chunk
from sparkdl_runner.data.batches.sample_threads import SampleThreads
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.arena import Empty

Row = dict[str, Any]
SampleTransform = Callable[..., Mapping[str, Any]]
"""Takes a row, and a ``numpy.random.Generator`` if it has a second argument."""

_Cell = tuple[np.dtype[Any], tuple[int, ...]] | str | bytes | None
"""The kind of one entry of a row: the type and shape of an array, or a text or bytes."""


class SampleTransformer:
    """Calls a function for each row of a chunk; its results replace the chunk's entries.

    Numbers and arrays of one shape and type are put together as arrays ``[rows, *shape]``, all else
    as lists.
    """

    def __init__(self, function: SampleTransform, threads: SampleThreads) -> None:
        if not callable(function):
            raise TypeError(f"sample_transform is {function!r}; expected a function of a row.")
        self._function = function
        self._takes_random = takes_random(function)
        self._threads = threads
        self._cells: dict[str, _Cell] = {}

    def apply(self, chunk: Chunk, empty: Empty) -> Chunk:
        """Returns the chunk that the function makes of ``chunk``.

        Rows that only fill up a batch, or whose image was skipped, are not given to the function;
        they are zeros in arrays.

        Raises:
            DatasetError: The rows of an entry differ in type or shape.
            Exception: What the function raised.
        """
        rows = int(chunk.bounds[-1])
        row_of = _rows(chunk)
        real = range(rows) if chunk.row_mask is None else np.flatnonzero(chunk.row_mask).tolist()
        done: dict[int, Row] = {}
        if not self._cells:
            if not rows:
                raise DatasetError(
                    "this rank has no row in its first step, so that the entries of "
                    "sample_transform are unknown. Give tail='drop' or 'pad'."
                )
            # Without a real row, a filling one shows the types and shapes of the result.
            first = real[0] if len(real) else 0
            done[first] = self._call(chunk, row_of, first)
            self._cells = {name: _cell(value) for name, value in done[first].items()}
        arrays = {
            name: empty(name, (rows, *cell[1]), cell[0])
            for name, cell in self._cells.items()
            if isinstance(cell, tuple)
        }
        lists = {name: [self._cells[name]] * rows for name in self._cells if name not in arrays}
        if len(real) < rows:
            for array in arrays.values():
                array[:] = 0

        def fill(number: int) -> None:
            row = real[number]
            result = done.get(row) or self._call(chunk, row_of, row)
            if result.keys() != self._cells.keys():
                raise DatasetError(
                    f"sample_transform gave {sorted(result)} for one row and "
                    f"{sorted(self._cells)} for another; expected the same entries for each."
                )
            for name, value in result.items():
                expected = self._cells[name]
                if not isinstance(expected, tuple):
                    lists[name][row] = value
                elif _cell(value) == expected:
                    arrays[name][row] = value
                else:
                    raise DatasetError(
                        f"sample_transform gave {_described(_cell(value))} for {name!r} "
                        f"of one row and {_described(expected)} for another; expected one type and "
                        "shape."
                    )

        self._threads.map(fill, len(real))
        return replace(chunk, dense=arrays, variable=lists)

    def _call(self, chunk: Chunk, row_of: Callable[[int], Row], row: int) -> Row:
        arguments: list[Any] = [row_of(row)]
        if self._takes_random:
            origins = chunk.origins
            arguments.append(origins.order.sample_random(chunk.epoch, origins.place(row)))
        result = self._function(*arguments)
        if not isinstance(result, Mapping):
            raise TypeError(
                f"sample_transform returned a {type(result).__name__}; expected a dict, as it was "
                "given."
            )
        return dict(result)


def takes_random(function: SampleTransform) -> bool:
    """Whether a function has a second argument without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one that is built in
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(wanted) > 1


def _rows(chunk: Chunk) -> Callable[[int], Row]:
    """How to get the entries of one row."""
    parts: list[tuple[int, dict[str, Any]]] = []
    if chunk.variable:
        parts = [
            (int(first), chunk.variable_batch(index))
            for index, first in enumerate(chunk.bounds[:-1])
        ]

    def row_of(row: int) -> Row:
        result: Row = {name: array[row] for name, array in chunk.dense.items()}
        if parts:
            first, batch = parts[int(np.searchsorted(chunk.bounds, row, side="right")) - 1]
            for name, values in batch.items():
                offsets = batch.get(f"{name}_offsets")
                if offsets is not None:
                    result[name] = values[offsets[row - first] : offsets[row - first + 1]]
                elif isinstance(values, list):
                    result[name] = values[row - first]
        return result

    return row_of


def _cell(value: Any) -> _Cell:
    if isinstance(value, str | bytes):
        return type(value)()
    if value is None or isinstance(value, list | tuple | dict):
        return None
    array = np.asarray(value)
    return None if array.dtype.hasobject else (array.dtype, array.shape)


def _described(cell: _Cell) -> str:
    if isinstance(cell, tuple):
        return f"{cell[0]} {list(cell[1])}"
    return "text or bytes" if cell is not None else "what is no array"
