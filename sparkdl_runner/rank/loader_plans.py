"""Each rank tells the driver how it reads its data, and the driver compares.

Ranks share the rows of a data set without communicating: each computes the whole order and takes
its part. If one computes another order, such as from another seed, some rows are read twice and
others never, and nothing fails. No rank waits for this comparison.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

from sparkdl_runner.rank.world import World

_LOADERS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "")
_MOST_FRAMES = 50
_MOST_RANKS = 8

_send: Callable[[dict[str, Any]], None] | None = None
_worker_pid: int | None = None
_turns: Counter[tuple[str, str]] = Counter()


def connect(send: Callable[[dict[str, Any]], None]) -> None:
    """Sends plans by ``send`` from now on. Called once, by the worker."""
    global _send, _worker_pid
    _send, _worker_pid = send, os.getpid()


def place_of_caller() -> str:
    """The line of the user's code that led here, equal in all ranks for the same call.

    The callers' lines are included, to tell apart the loaders that one function opens for others.
    """
    frame: FrameType | None = sys._getframe(1)
    lines: list[str] = []
    while frame is not None and len(lines) < _MOST_FRAMES:
        path = frame.f_code.co_filename
        if not path.startswith(_LOADERS):
            # Without its folder, which may differ between hosts.
            lines.append(f"{os.path.basename(path)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


def tell(data: str, place: str, *, order: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Tells the driver how a loader is about to read. Does nothing outside a rank.

    Args:
        data: The data set's directory.
        place: Where the loader was made, as ``place_of_caller`` has it.
        order: All that must be equal on all ranks, as plain JSON values.
        arguments: What the caller gave, by the names that they know.
    """
    # A forked process shares the socket; two writers would tear each other's messages.
    if _send is None or os.getpid() != _worker_pid:
        return
    _turns[data, place] += 1
    plan = {
        "data": data,
        "place": place,
        "turn": _turns[data, place],
        "order": dict(order),
        "arguments": dict(arguments),
    }
    with suppress(OSError):  # The agent is gone, and this process will be.
        _send(plan)


class LoaderPlans:
    """The plans of all ranks of one attempt.

    The first loaders that ranks made at one place in the code, over one directory, are compared
    with each other, then the second ones, and so on. A loader without a counterpart is compared at
    the end of the run: only then is it known whether another rank made one elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[tuple[str, str, int], dict[int, dict[str, Any]]] = {}
        self._worlds: dict[int, World] = {}
        self._has_differed = False

    def compare(self, world: World, plan: Mapping[str, Any]) -> str | None:
        """Takes a rank's plan. Returns the first difference, as what follows the rank's name."""
        key = (str(plan["data"]), str(plan["place"]), int(plan["turn"]))
        mine = {"order": plan["order"], "arguments": plan["arguments"], "place": key[1]}
        with self._lock:
            self._worlds[world.rank] = world
            plans = self._plans.setdefault(key, {})
            plans[world.rank] = mine
            first = next(iter(plans.values()))  # All before this one are equal to it.
            if len(plans) == world.size:
                del self._plans[key]  # It is complete, and there may be one for every epoch.
            if self._has_differed or mine["order"] == first["order"]:
                return None
            self._has_differed = True
            return _sentence(plans, key[1])

    def compare_left_over(self) -> tuple[World, str] | None:
        """Compares the loaders that ranks made at different places, once all have returned.

        Returns:
            A rank that read in another order, and the words to follow its name.
        """
        left: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for (data, _, _), of_ranks in self._plans.items():
            for rank, plan in of_ranks.items():
                left.setdefault(data, {}).setdefault(rank, []).append(plan)
        for by_rank in left.values():
            # Compare only data that every rank read by a loader of its own place.
            if len(by_rank) < next(iter(self._worlds.values())).size or self._has_differed:
                continue
            rank = min(by_rank, key=lambda rank: (len(by_rank[rank]), -rank))
            for mine in by_rank[rank]:
                nearest = {
                    other: min(plans, key=lambda plan: _distance(mine, plan))
                    for other, plans in by_rank.items()
                }
                if any(plan["order"] != mine["order"] for plan in nearest.values()):
                    return self._worlds[rank], _sentence(nearest, mine["place"])
        return None


def _sentence(plans: Mapping[int, Mapping[str, Any]], place: str) -> str:
    differences = _differences(plans, "arguments") or _differences(plans, "order")
    return (
        "reads its data in another order than other ranks, so that some rows would be read "
        f"twice and others never: {'; '.join(differences)}. Its loader is made in "
        f"{place.partition(' < ')[0] or 'unknown code'}. Give all ranks the same. Where a "
        "rank is to read all rows by itself, give cur_shard=0 and shard_count=1."
    )


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """In how many settings two plans differ."""
    return sum(one["order"][name] != other["order"].get(name) for name in one["order"])


def _differences(plans: Mapping[int, Mapping[str, Any]], part: str) -> list[str]:
    """One entry for each setting that is not the same: its values, and which ranks have each."""
    differences = []
    for name in next(iter(plans.values()))[part]:
        ranks: dict[str, list[int]] = {}
        for rank, plan in sorted(plans.items()):
            ranks.setdefault(repr(plan[part].get(name)), []).append(rank)
        if len(ranks) > 1:
            values = [f"{value} on {_named(those)}" for value, those in ranks.items()]
            differences.append(f"{name} is {', '.join(values[:_MOST_RANKS])}")
    return differences


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = ", …" if len(ranks) > _MOST_RANKS else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
