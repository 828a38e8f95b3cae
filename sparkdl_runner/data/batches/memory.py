"""The memory of a loader's batches: NumPy arrays or torch tensors."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from sparkdl_runner.tensors.arrays import Array

_ALIGNMENT = 64
"""Bytes. JAX copies what does not begin at a multiple of this."""
_CHUNKS = 3
"""One that is used, one that waits, and one that is made."""


class _Loan:
    """The base of an array that lies in ``memory``.

    NumPy keeps it as long as the array, a view of it or a tensor of it is left. Then the memory can
    be used again.
    """

    def __init__(self, memory: Array, size: int, free: deque[Array]) -> None:
        self._memory, self._free = memory, free
        interface = memory.__array_interface__
        address = interface["data"][0]
        begin = address + -address % _ALIGNMENT
        self.__array_interface__ = {**interface, "shape": (size,), "data": (begin, False)}

    def __del__(self) -> None:
        self._free.append(self._memory)


class ArrayMemory:
    """Batches of NumPy arrays in ordinary memory, which the caller may keep.

    The memory of those that are not kept is used for a later chunk: new pages of it would cost the
    kernel more time than filling them.
    """

    def __init__(self) -> None:
        self._free: dict[str, deque[Array]] = {}

    def begin(self) -> None:
        """Called before a chunk is gathered."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for one array of the chunk."""
        size = math.prod(shape) * dtype.itemsize
        free = self._free.setdefault(name, deque(maxlen=_CHUNKS))
        memory = free.popleft() if free else None
        if memory is None or len(memory) < size + _ALIGNMENT:
            memory = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        return np.asarray(_Loan(memory, size, free)).view(dtype).reshape(shape)

    def release(self) -> None:
        """Lets the memory go that no batch has."""
        self._free.clear()

    def wrap(self, array: Array) -> Any:
        """The array as batches have it."""
        return array

    def split(self, whole: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Cuts what ``wrap`` returned into views of so many rows, without a copy."""
        ends = itertools.accumulate(sizes, initial=0)
        return [whole[begin:end] for begin, end in itertools.pairwise(ends)]

    def side_stream(self) -> AbstractContextManager[Any]:
        """The stream of a transform: on a GPU another than that of the caller's step."""
        return nullcontext()

    def send(self, batches: Sequence[dict[str, Any]]) -> Any:
        """Takes the chunk's batches to where they are used; returns what ``receive`` needs."""
        return None

    def receive(self, batch: Mapping[str, Any], copied: Any) -> None:
        """Called in the caller's thread before it gets a batch."""
