"""Copies of tensors in host memory, made so quickly that training can wait for them.

Memory that was never touched costs more to get than to fill, so the buffers of the last save are
used again.
"""

from __future__ import annotations

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

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory; the same one for a tensor at the same place in memory."""
        import torch

        tensor = tensor.detach()
        if type(tensor) is not torch.Tensor:
            self.size_bytes += tensor.numel() * tensor.element_size()
            plain = tensor.cpu()
            return plain.clone() if plain is tensor else plain
        memory = (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        place = (*memory, tensor.is_conj(), tensor.is_neg())
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

    def end(self) -> None:
        """Waits until all copies are whole, and lets go of buffers that were not used again."""
        import torch

        for device in {source.device for source, _ in self._taken.values() if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        self._taken = {}
        self._last = {}
