"""Copies of tensors in host memory, made so quickly that training can wait for them.

Memory that was never touched costs more to get than to fill, so the buffers of the last save are
used again.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HostCopies:
    """Takes copies, one save after the other; the copies of a save are gone with the next."""

    def __init__(self) -> None:
        self._buffers: dict[Any, list[torch.Tensor]] = {}
        self._last: dict[Any, list[torch.Tensor]] = {}
        self._taken: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self.size_bytes = 0

    def begin(self) -> None:
        """From now on buffers of the last save are written to again."""
        self._last, self._buffers = self._buffers, {}
        self._taken = {}
        self.size_bytes = 0

    def take(self, value: Any) -> Any:
        """A copy of tensors, dicts and sequences; what was one tensor is one in the copy too."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        kind = type(value)
        if kind is dict:
            return {key: self.take(entry) for key, entry in value.items()}
        if kind is OrderedDict:
            same = OrderedDict((key, self.take(entry)) for key, entry in value.items())
            # Modules keep the versions of their state in an attribute of the dict.
            same.__dict__.update(copy.deepcopy(value.__dict__))
            return same
        if kind in (list, tuple):
            return kind(self.take(entry) for entry in value)
        return copy.deepcopy(value)

    def end(self) -> None:
        """Waits until all copies are whole, and lets go of buffers that were not used again."""
        import torch

        for device in {source.device for source, _ in self._taken.values() if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        self._taken = {}
        self._last = {}

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        tensor = tensor.detach()
        if tensor.layout != torch.strided or type(tensor) is not torch.Tensor:
            plain = tensor.cpu()
            return plain.clone() if plain is tensor else plain
        place = (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        known = self._taken.get(place)
        if known is not None and tensor.numel():
            return known[1]
        pinned = tensor.is_cuda
        like = (tensor.shape, tensor.stride(), tensor.dtype, pinned)
        reusable = self._last.get(like)
        if reusable:
            buffer = reusable.pop()
        else:
            # Keeps the order of dimensions in memory, and leaves the gaps of a view out.
            strides = torch.empty_like(tensor, device="meta").stride()
            buffer = torch.empty_strided(
                tensor.shape, strides, dtype=tensor.dtype, pin_memory=pinned
            )
        buffer.copy_(tensor, non_blocking=pinned)
        self._buffers.setdefault(like, []).append(buffer)
        # The source is kept, so that no other tensor of this save can have its place.
        self._taken[place] = (tensor, buffer)
        self.size_bytes += buffer.numel() * buffer.element_size()
        return buffer


def tensor_bytes(value: Any) -> int:
    """Bytes that the copies of all tensors in ``value`` take at most."""
    import torch

    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, dict):
        return sum(tensor_bytes(entry) for entry in value.values())
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(entry) for entry in value)
    return 0
