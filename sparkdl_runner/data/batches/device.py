"""The memory of batches: plain memory, or a GPU by way of a ring of pinned memory.

For a GPU, rows are gathered straight into pinned memory and copied on a separate stream while the
previous step computes. The step's stream waits for the copy. The host waits only if the slot of the
ring that comes next is still being copied from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparkdl_runner.data.batches.memory import ArrayMemory
from sparkdl_runner.tensors.arrays import Array


class _Tensors:
    """Batches of tensors."""

    def wrap(self, array: Array) -> torch.Tensor:
        """The array as batches have it."""
        return torch.from_numpy(array)

    def split(self, whole: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """Cuts a tensor into parts of so many rows, which share its memory."""
        # Torch calls it unsafe: it would not notice that the whole and a part are both changed.
        # Nobody changes the whole.
        parts: Sequence[torch.Tensor] = whole.unsafe_split_with_sizes(list(sizes))
        return parts


class HostMemory(_Tensors, ArrayMemory):
    """Batches of tensors in ordinary memory, which the caller may keep."""


@dataclass(kw_only=True)
class _Slot:
    pinned: dict[str, torch.Tensor] = field(default_factory=dict)
    copied: torch.cuda.Event | None = None


class PinnedRing(_Tensors):
    """Batches on a GPU.

    Args:
        device: A CUDA device. With a CPU the ring works the same, of ordinary memory and without
            streams: what its tests use.
        slots: Chunks in flight: one that is gathered, one that is copied, and spare.
    """

    def __init__(self, device: torch.device, *, slots: int = 3) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._slots = [_Slot() for _ in range(slots)]
        self._turn = -1

    def begin(self) -> None:
        """Takes the next slot, once nothing is copied from it any more."""
        if self._stream is not None:
            torch.cuda.set_device(self._device)  # Per thread; pinning would use GPU 0 otherwise.
        self._turn = (self._turn + 1) % len(self._slots)
        copied = self._slots[self._turn].copied
        if copied is not None:
            copied.synchronize()

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Pinned memory of the slot, which grows to the largest chunk and then stays."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        slot = self._slots[self._turn]
        memory = slot.pinned.get(name)
        if memory is None or memory.numel() < size:
            pin = self._stream is not None
            memory = slot.pinned[name] = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        array: Array = memory.numpy()[:size].view(dtype).reshape(shape)
        return array

    def release(self) -> None:
        """Lets nothing go: copies of it may be under way."""

    def side_stream(self) -> AbstractContextManager[Any]:
        """Runs a transform on the ring's stream, so that ``copied`` covers it as well."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return stream

    def send(self, batches: Sequence[dict[str, Any]]) -> torch.cuda.Event | None:
        """Starts copying every tensor of the batches, which are changed in place."""
        with torch.cuda.stream(self._stream):
            for batch in batches:
                for name, value in batch.items():
                    if isinstance(value, torch.Tensor):
                        batch[name] = self._copy(value)
            if self._stream is None:
                return None
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._slots[self._turn].copied = copied
        return copied

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        if self._stream is None:
            return value.clone()
        if value.device == self._device:  # sent before, or made there by a transform
            return value
        source = value if value.is_pinned() else value.pin_memory()
        return source.to(self._device, non_blocking=True)

    def receive(self, batch: Mapping[str, Any], copied: torch.cuda.Event | None) -> None:
        """Makes the caller's stream wait for the copy, and tells the allocator who uses it."""
        if copied is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for value in batch.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(stream)


Memory = HostMemory | PinnedRing


def memory_for(device: torch.device | str | None) -> Memory:
    """The memory that batches for a device need.

    Raises:
        ValueError: The device is neither a CPU nor a CUDA GPU, or there is no such GPU.
    """
    if device is None:
        return HostMemory()
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is no torch device: {error}") from error
    if wanted.type == "cpu":
        return HostMemory()
    if wanted.type != "cuda":
        raise ValueError(
            f"device is {device!r}, and batches go to 'cpu', 'cuda' or 'numpy': give one of these."
        )
    if not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r}, and torch {torch.__version__} sees no GPU here. Leave device out, "
            "or run where torch.cuda.is_available()."
        )
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device is {device!r}; this rank's GPUs are 'cuda:0' to 'cuda:{last}'.")
    return PinnedRing(torch.device("cuda", index))
