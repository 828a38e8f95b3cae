"""Bytes of the tensors that are alive during a step, by what they are for."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STATE, GRADIENT, WORK = "state", "gradient", "work"
"""Parameters, buffers and the optimizer's state; gradients; activations and all else."""


@dataclass(frozen=True)
class Moment:
    """The live bytes at one time, beside the state."""

    part: int
    """The part of the model that worked; 0 for what is in none."""
    in_backward: bool
    work_bytes: int
    gradient_bytes: int


class LiveBytes(TorchDispatchMode):
    """Follows each tensor that is made while this mode is on. Each storage counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.part = 0
        self.in_backward = False
        self.moments: list[Moment] = []
        """Those that may be a peak: no other one of the same part has more of both."""
        self._bytes: Counter[str] = Counter()
        self._storages: dict[int, _Storage] = {}

    def add(self, tensor: Tensor, kind: str = WORK) -> None:
        """Counts a tensor; one that was counted before is of this kind from now on."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is None:
            # torch keeps this Python object, and so the reference, as long as the storage lives.
            reference = weakref.ref(storage, lambda _: self._forget(key))
            self._storages[key] = _Storage(reference, kind, self.part, storage.nbytes())
        else:
            self._bytes[known.kind] -= known.size_bytes
            known.kind = kind
        self._bytes[kind] += self._storages[key].size_bytes

    def work_bytes_by_part(self) -> Mapping[int, int]:
        """Bytes of the work that is alive, by the part that made it."""
        size_by_part: Counter[int] = Counter()
        for storage in self._storages.values():
            if storage.kind == WORK:
                size_by_part[storage.part] += storage.size_bytes
        return size_by_part

    def _forget(self, key: int) -> None:
        storage = self._storages.pop(key)
        self._bytes[storage.kind] -= storage.size_bytes

    def _look(self) -> None:
        now = Moment(self.part, self.in_backward, self._bytes[WORK], self._bytes[GRADIENT])
        if not any(_covers(moment, now) for moment in self.moments):
            self.moments = [moment for moment in self.moments if not _covers(now, moment)] + [now]

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if (
                isinstance(leaf, Tensor)
                and leaf.layout is torch.strided
                and leaf.untyped_storage()._cdata not in self._storages
            ):
                self.add(leaf)
        self._look()
        return result


@dataclass
class _Storage:
    reference: weakref.ref[Any]
    kind: str
    part: int
    size_bytes: int


def _covers(moment: Moment, other: Moment) -> bool:
    return (
        (moment.part, moment.in_backward) == (other.part, other.in_backward)
        and moment.work_bytes >= other.work_bytes
        and moment.gradient_bytes >= other.gradient_bytes
    )
