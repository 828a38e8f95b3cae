"""Exchange of text about checkpoints between ranks, by the backend that the training uses.

Bytes travel as tensors; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.this_host import boot_id, namespace
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.transient_errors import may_pass, patiently
from sparkdl_runner.checkpoint.errors import (
    CheckpointError,
    CheckpointStorageError,
    DamageError,
    UnreadableError,
)
from sparkdl_runner.rank import world

if TYPE_CHECKING:
    import torch

_numbers = itertools.count()


class Peers:
    """All ranks of the run: here, a rank that is alone.

    Every method is to be called by all ranks, in the same order.
    """

    rank = 0
    size = 1

    @property
    def host_key(self) -> int:
        """A number that ranks have in common if they share a host, its processes and a user."""
        place = world.current_world().host_id if world.in_worker() else ""
        place += boot_id() + namespace("pid")
        named = f"{socket.gethostname()} {os.getuid()} {place}"
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:7], "big")

    def is_there(self) -> bool:
        """Whether these are still the ranks that ``connect`` would find."""
        return type(self) is Peers and _backend() is None

    def broadcast(self, data: bytes) -> bytes:
        """Returns rank 0's ``data`` on all ranks."""
        if self.size == 1:
            return data
        import torch

        mine = data if self.rank == 0 else b""
        size_bytes = int(self._from_rank_0(torch.tensor([len(mine)]), "size"))
        content = torch.zeros(size_bytes, dtype=torch.uint8)
        if mine:
            content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        return bytes(self._from_rank_0(content, "content").numpy()) if size_bytes else b""

    def begin_sum(self, values: list[int]) -> Any:
        """Begins to add up small whole numbers of all ranks, and returns at once."""
        return values

    def end_sum(self, pending: Any) -> list[int]:
        """The sums that were begun."""
        return list(pending)

    def any_rank(self, flag: bool) -> bool:
        """Whether ``flag`` is true on any rank."""
        return self.end_sum(self.begin_sum([int(flag)]))[0] > 0

    def gather_text(self, text: str, most_bytes: int = 64) -> list[str]:
        """A short text of every rank, in the order of ranks; what is longer is cut off."""
        words = -(-most_bytes // 8)
        mine = text.encode()[:most_bytes].ljust(8 * words, b"\0")
        return [
            struct.pack(f"<{words}q", *packed).rstrip(b"\0").decode(errors="replace")
            for packed in self._gather(list(struct.unpack(f"<{words}q", mine)))
        ]

    def gather_numbers(self, numbers: list[int]) -> list[list[int]]:
        """Whole numbers of every rank, in the order of ranks; there may be more of some."""
        counts = [count for (count,) in self._gather([len(numbers)])]
        padding = [0] * (max(counts) - len(numbers))
        gathered = self._gather([*numbers, *padding])
        return [padded[:count] for padded, count in zip(gathered, counts, strict=True)]

    def _gather(self, numbers: list[int]) -> list[list[int]]:
        """Equally many whole numbers of every rank."""
        count = len(numbers)
        # Each rank has a place of its own in the sum, so that adding up is putting together.
        values = [0] * (count * self.size)
        values[count * self.rank : count * (self.rank + 1)] = numbers
        together = self.end_sum(self.begin_sum(values))
        return [together[count * rank : count * (rank + 1)] for rank in range(self.size)]

    def _from_rank_0(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        raise NotImplementedError


def connect() -> Peers:
    """The ranks that this process is one of: torch.distributed's, else Horovod's, else alone.

    To be called by all ranks, equally often.

    Raises:
        CheckpointError: This is one of several ranks, and they cannot speak with each other yet.
    """
    backend = _backend()
    if backend is not None:
        return backend()
    if world.in_worker() and (here := world.current_world()).size > 1:
        raise CheckpointError(
            f"Rank {here.rank} on host {here.place} is one of {here.size} ranks, which have to "
            "agree on checkpoints and cannot speak with each other yet: call hvd.init() or "
            "torch.distributed.init_process_group() before the first use of a CheckpointManager."
        )
    return Peers()


def _backend() -> type[TorchPeers] | type[HorovodPeers] | None:
    """The kind of peers that speak by what is initialized."""
    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return TorchPeers
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        return HorovodPeers
    return None


class TorchPeers(Peers):
    """Ranks of ``torch.distributed``, in a group of their own beside that of the gradients."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group = dist.new_group(backend="gloo")
        self._world = dist.group.WORLD
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def is_there(self) -> bool:
        """See ``Peers.is_there``."""
        import torch.distributed as dist

        return dist.is_initialized() and dist.group.WORLD is self._world

    def begin_sum(self, values: list[int]) -> Any:
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.int64)
        return dist.all_reduce(sums, group=self._group, async_op=True), sums

    def end_sum(self, pending: Any) -> list[int]:
        work, sums = pending
        work.wait()
        return [int(value) for value in sums.tolist()]

    def _from_rank_0(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        import torch.distributed as dist

        dist.broadcast(tensor, 0, group=self._group)
        return tensor


class HorovodPeers(Peers):
    """Ranks of Horovod, which knows operations by their names."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        # Numbered, and not named by the directory: ranks that disagree on that have to be told.
        self._name = f"sparkdl_runner.checkpoint.{next(_numbers)}"
        self.rank = int(hvd.rank())
        self.size = int(hvd.size())

    def is_there(self) -> bool:
        """See ``Peers.is_there``."""
        return bool(self._hvd.is_initialized())

    def begin_sum(self, values: list[int]) -> Any:
        import torch

        sums = torch.tensor(values, dtype=torch.int64)
        name = f"{self._name}.sum.{len(values)}"
        return self._hvd.allreduce_async(sums, op=self._hvd.Sum, name=name)

    def end_sum(self, pending: Any) -> list[int]:
        return [int(value) for value in self._hvd.synchronize(pending).tolist()]

    def _from_rank_0(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        received: torch.Tensor = self._hvd.broadcast(tensor, 0, name=f"{self._name}.{what}")
        return received


def host() -> str:
    """This rank's host, for people."""
    return world.current_world().place if world.in_worker() else socket.gethostname()


def ask_rank_0(storage: Storage, peers: Peers, action: Callable[[], Any], problem: str) -> Any:
    """Returns on all ranks what ``action`` returns on rank 0, as JSON.

    Args:
        storage: What the action uses; a call that it fails is repeated for a while.
        peers: All ranks.
        action: Called on rank 0 alone.
        problem: What to say on all ranks if it fails.

    Raises:
        CheckpointStorageError: It failed, and may not fail again.
        CheckpointError: It failed.
    """
    answer: dict[str, Any] = {}
    cause: Exception | None = None
    if peers.rank == 0:
        try:
            answer = {"value": patiently(storage, action)}
        except Exception as error:  # Storages raise errors of many kinds.
            message = f"{type(error).__name__}: {error}"
            answer = {"error": message, "may_pass": may_pass(storage, error)}
            cause = error
    answer = json.loads(peers.broadcast(json.dumps(answer).encode()))
    if "error" in answer:
        kind = CheckpointStorageError if answer["may_pass"] else CheckpointError
        raise kind(f"Rank {peers.rank} on host {host()}: {problem} ({answer['error']}).") from cause
    return answer["value"]


def read_on_rank_0(peers: Peers, read: Callable[[], bytes]) -> bytes:
    """Reads a small file on rank 0 and returns it on all ranks; all of them must call it.

    Raises:
        DamageError: Rank 0 could not, for the reason that it found.
    """
    answer = b""
    if peers.rank == 0:
        try:
            answer = b"+" + read()
        except DamageError as problem:
            sign = b"?" if isinstance(problem, UnreadableError) else b"-"
            answer = sign + str(problem).encode()
    answer = peers.broadcast(answer)
    if answer[:1] == b"+":
        return answer[1:]
    raise (UnreadableError if answer[:1] == b"?" else DamageError)(answer[1:].decode())
