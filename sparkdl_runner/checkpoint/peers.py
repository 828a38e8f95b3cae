"""The few words that ranks exchange about checkpoints, over whichever backend is there.

Bytes travel as tensors; nothing is pickled.
"""

from __future__ import annotations

import itertools
import socket
import sys
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl_runner import world
from sparkdl_runner.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_TEXT_BYTES = 64
_numbers = itertools.count()


class Peers(Protocol):
    """All ranks of the run. Every method is to be called by all of them, in the same order."""

    rank: int
    size: int

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """What rank ``root`` gave as ``data``, on all ranks."""

    def begin_sum(self, values: list[int]) -> Any:
        """Begins to add up small whole numbers of all ranks, and returns at once."""

    def end_sum(self, pending: Any) -> list[int]:
        """The sums that were begun."""


def any_rank(peers: Peers, flag: bool) -> bool:
    """Whether ``flag`` is true on any rank."""
    return peers.end_sum(peers.begin_sum([int(flag)]))[0] > 0


def gather_text(peers: Peers, text: str) -> list[str]:
    """A short text of every rank, in the order of ranks."""
    mine = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    values = [0] * (_TEXT_BYTES * peers.size)
    # Each rank has a place of its own in the sum, so that adding up is putting together.
    values[_TEXT_BYTES * peers.rank : _TEXT_BYTES * (peers.rank + 1)] = mine
    together = bytes(peers.end_sum(peers.begin_sum(values)))
    return [
        together[start : start + _TEXT_BYTES].rstrip(b"\0").decode(errors="replace")
        for start in range(0, len(together), _TEXT_BYTES)
    ]


def host() -> str:
    """This rank's host, for people."""
    return world.current_world().host if world.in_worker() else socket.gethostname()


def connect() -> Peers:
    """The ranks that this process is one of: torch.distributed's, else Horovod's, else alone.

    To be called by all ranks, equally often.

    Raises:
        CheckpointError: This is one of several ranks, and they cannot speak with each other yet.
    """
    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return TorchPeers()
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        return HorovodPeers()
    if world.in_worker() and (here := world.current_world()).size > 1:
        raise CheckpointError(
            f"Rank {here.rank} on host {here.host} is one of {here.size} ranks, which have to "
            "agree on checkpoints and cannot speak with each other yet: call hvd.init() or "
            "torch.distributed.init_process_group() before the first use of a CheckpointManager."
        )
    return Alone()


class Alone:
    """The only rank."""

    rank = 0
    size = 1

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        return data or b""

    def begin_sum(self, values: list[int]) -> Any:
        return values

    def end_sum(self, pending: Any) -> list[int]:
        return list(pending)


class TorchPeers:
    """Ranks of ``torch.distributed``, in a group of their own beside that of the gradients."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group = dist.new_group(backend="gloo")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        import torch
        import torch.distributed as dist

        mine = data if self.rank == root and data is not None else b""
        size_bytes = torch.tensor([len(mine)], dtype=torch.int64)
        dist.broadcast(size_bytes, root, group=self._group)
        content = _as_tensor(mine, int(size_bytes))
        if len(content):
            dist.broadcast(content, root, group=self._group)
        return bytes(content.numpy())

    def begin_sum(self, values: list[int]) -> Any:
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.int64)
        return dist.all_reduce(sums, group=self._group, async_op=True), sums

    def end_sum(self, pending: Any) -> list[int]:
        work, sums = pending
        work.wait()
        return [int(value) for value in sums.tolist()]


class HorovodPeers:
    """Ranks of Horovod, which knows operations by their names."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        # By order and not by directory: where ranks disagree on that, they have to be told.
        self._name = f"sparkdl_runner.checkpoint.{next(_numbers)}"
        self.rank = int(hvd.rank())
        self.size = int(hvd.size())

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        import torch

        mine = data if self.rank == root and data is not None else b""
        size_bytes = torch.tensor([len(mine)], dtype=torch.int64)
        size_bytes = self._hvd.broadcast(size_bytes, root, name=f"{self._name}.size")
        content = _as_tensor(mine, int(size_bytes))
        if len(content):
            content = self._hvd.broadcast(content, root, name=f"{self._name}.content")
        return bytes(content.numpy())

    def begin_sum(self, values: list[int]) -> Any:
        import torch

        sums = torch.tensor(values, dtype=torch.int64)
        name = f"{self._name}.sum.{len(values)}"
        return self._hvd.allreduce_async(sums, op=self._hvd.Sum, name=name)

    def end_sum(self, pending: Any) -> list[int]:
        return [int(value) for value in self._hvd.synchronize(pending).tolist()]


def _as_tensor(content: bytes, size_bytes: int) -> torch.Tensor:
    import torch

    if len(content) == size_bytes and size_bytes:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return torch.zeros(size_bytes, dtype=torch.uint8)
