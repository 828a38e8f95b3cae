"""Each rank tells the driver what its copy of a model comes to, and the driver compares.

Ranks that train copies of one model have equal parameters after each step. If one does not, it has
never joined the others, has begun with weights of its own, or its memory has changed a bit: it
trains something else, and nothing fails. No rank waits for this comparison.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat, zip_longest
from typing import Any

from sparkdl_runner.rank.world import World

# Of ranks that fall behind, or never tell, nothing is kept for longer.
MOST_TURNS = 16
_MOST_NAMES = 3

_send: Callable[[dict[str, Any]], None] | None = None
_worker_pid: int | None = None


def connect(send: Callable[[dict[str, Any]], None]) -> None:
    """Sends sums by ``send`` from now on. Called once, by the worker."""
    global _send, _worker_pid
    _send, _worker_pid = send, os.getpid()


def is_connected() -> bool:
    """Whether there is a driver that compares."""
    return _send is not None and os.getpid() == _worker_pid


def tell(
    *,
    model: int,
    step: int,
    sums: Sequence[int],
    names: Sequence[str] | None,
    copies: Sequence[str] | None,
    ends_run: bool,
) -> None:
    """Tells the driver what this rank's parameters come to. Does nothing outside a rank.

    Args:
        model: Which of the function's models it is, counted from 0.
        step: How often it was trained with, the same on all ranks.
        sums: A number for each parameter.
        names: Theirs, if they have changed since the last time. Only rank 0's are used.
        copies: For each, which ranks have a copy of it: those that tell the same text. None if
            that has not changed, or all ranks have one.
        ends_run: Whether a difference ends the run; else it is told.
    """
    if _send is None or not is_connected():
        return
    told = {"model": model, "step": step, "sums": list(sums), "ends_run": ends_run}
    if names is not None:
        told |= {"names": list(names), "copies": copies and list(copies)}
    with suppress(OSError):  # The agent is gone, and this process will be.
        _send(told)


class Replicas:
    """The sums of all ranks of one attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[int, list[str]] = {}
        self._copies: dict[tuple[int, int], list[str] | None] = {}
        self._turns: dict[tuple[int, int], dict[int, list[int]]] = {}
        self._worlds: dict[int, World] = {}
        self._has_differed = False

    def compare(self, world: World, told: Mapping[str, Any]) -> tuple[World, str] | None:
        """Takes a rank's sums.

        Returns:
            The first rank that differs from most others, and what follows its name; once.
        """
        model, step = int(told["model"]), int(told["step"])
        with self._lock:
            self._worlds[world.rank] = world
            if "names" in told:
                if world.rank == 0:
                    self._names[model] = list(told["names"])
                self._copies[model, world.rank] = told["copies"]
            turn = self._turns.setdefault((model, step), {})
            turn[world.rank] = list(told["sums"])
            if len(turn) < world.size:
                if len(self._turns) > MOST_TURNS:
                    # The oldest stay too: one that has not joined the others may be far behind.
                    del self._turns[list(self._turns)[MOST_TURNS // 2]]
                return None
            del self._turns[model, step]
            if self._has_differed:
                return None
            copies = {rank: self._copies.get((model, rank)) for rank in turn}
            different = differences(turn, copies)
            if not different:
                return None
            self._has_differed = True
            return self._described(different, model, step)

    def _described(
        self, different: Mapping[int, Sequence[int]], model: int, step: int
    ) -> tuple[World, str]:
        names = self._names.get(model, [])
        first = min(different, key=lambda rank: (-len(different[rank]), rank))
        places = different[first]
        shown = [names[at] if at < len(names) else f"parameter {at}" for at in places]
        if len(shown) > _MOST_NAMES + 1:
            shown[_MOST_NAMES:] = [f"{len(shown) - _MOST_NAMES} more"]
        listed = " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
        others = sorted(set(different) - {first})
        too = f" So {_have(others)}." if others else ""
        copies = {rank: self._copies.get((model, rank)) or [] for rank in self._worlds}
        own = copies.pop(first)
        holders = [
            {rank for rank, parts in copies.items() if parts[at : at + 1] == own[at : at + 1]}
            for at in places
        ]
        if all(one == holders[0] and len(one) == 1 for one in holders):
            too += f" Only rank {min(holders[0])} has that part too: either may be wrong."
        return self._worlds[first], (
            f"trains another model than the other ranks: at step {step} it differs in "
            f"{listed}.{too} Such a rank has not joined the others (hvd.DistributedOptimizer, "
            "DistributedDataParallel), has begun with weights of its own "
            "(hvd.broadcast_parameters), changes them by itself, or its memory is faulty."
        )


def differences(
    sums: Mapping[int, Sequence[int]], copies: Mapping[int, Sequence[str] | None]
) -> dict[int, list[int]]:
    """For each rank that differs from most that have a copy, in which parameters.

    Where no value is most ranks', the lowest rank's counts as theirs.

    Args:
        sums: By rank, one for each parameter.
        copies: By rank, see ``tell``.
    """
    different: dict[int, list[int]] = {}
    first = next(iter(sums.values()), [])
    if not any(copies.values()) and all(own == first for own in sums.values()):
        return different  # As nearly always: of thousands of ranks, one by one takes seconds.
    ranks = sorted(sums)
    columns = zip_longest(*(sums[rank] for rank in ranks))
    holders = zip_longest(*(copies[rank] or () for rank in ranks))
    for number, (values, keys) in enumerate(zip(columns, chain(holders, repeat(())), strict=False)):
        keys = keys or (None,) * len(ranks)
        if len(set(zip(keys, values, strict=True))) == len(set(keys)):
            continue  # All of each copy are equal.
        for copy in set(keys):
            own = [at for at, key in enumerate(keys) if key == copy]
            usual = Counter(values[at] for at in own).most_common(1)[0][0]  # The first of equals.
            for odd in (at for at in own if values[at] != usual):
                different.setdefault(ranks[odd], []).append(number)
    return different


def _have(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"{'does rank' if len(ranks) == 1 else 'do ranks'} {shown}"
