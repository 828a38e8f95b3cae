"""The memory of a loader's batches: NumPy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl_runner.data.decode.arrays import Array

if TYPE_CHECKING:
    import torch

    from sparkdl_runner.data.batches.device import PinnedRing


_ALIGNMENT = 64
"""Bytes. JAX copies what does not begin at a multiple of this."""


class ArrayMemory:
    """Batches of NumPy arrays in ordinary memory, new for every chunk: the caller may keep them."""

    def begin(self) -> None:
        """Called before a chunk is gathered."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for one array of the chunk."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        begin = -memory.ctypes.data % _ALIGNMENT
        return memory[begin : begin + size].view(dtype).reshape(shape)

    def wrap(self, array: Array) -> Any:
        """The array as batches have it."""
        return array

    def split(self, whole: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Cuts what ``wrap`` returned into parts of so many rows: views, not copies."""
        return np.split(whole, np.cumsum(sizes)[:-1])

    def side_stream(self) -> AbstractContextManager[Any]:
        """The stream of a transform: on a GPU another than that of the caller's step."""
        return nullcontext()

    def send(self, batches: Sequence[dict[str, Any]]) -> Any:
        """Takes the chunk's batches to where they are used; returns what ``receive`` needs."""
        return None

    def receive(self, batch: Mapping[str, Any], ticket: Any) -> None:
        """Called in the caller's thread before it gets a batch."""


def memory_of(device: torch.device | str | None) -> ArrayMemory | PinnedRing:
    """The memory of batches for ``ArrowLoader(device=…)``. Arrays need no torch.

    Raises:
        ValueError: There is no such device.
    """
    if isinstance(device, str) and device == "numpy":
        return ArrayMemory()
    from sparkdl_runner.data.batches.device import memory_for

    return memory_for(device)
