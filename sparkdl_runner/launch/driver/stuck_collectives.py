"""Finds the collectives that never end, and the ranks that have not called them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.launch.driver.consequences import ranges
from sparkdl_runner.launch.wire.messages import Stacks

Calls = Mapping[int, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class StuckCollective:
    """A collective that some ranks wait in, and that others of its group have not called."""

    name: str
    waiting: frozenset[int]
    absent: frozenset[int]
    last: str
    """What the absent ranks called last in the group; empty if not all the same, or nothing."""

    def __str__(self) -> str:
        """A sentence."""
        waiting, absent = ranges(sorted(self.waiting)), ranges(sorted(self.absent))
        wait = f"Ranks {waiting} wait" if len(self.waiting) > 1 else f"Rank {waiting} waits"
        have = f"ranks {absent} have" if len(self.absent) > 1 else f"rank {absent} has"
        last = f": the last there was {self.last}" if self.last else ""
        return f"{wait} in {self.name}, which {have} not called{last}."


def find(ranks: Sequence[int], stacks: Mapping[int, Stacks]) -> list[StuckCollective]:
    """The collectives that some of these ranks wait in, and that others have not called.

    Those with the fewest absent ranks are first.
    """
    told = {rank: stacks[rank].collectives for rank in ranks if rank in stacks}
    calls: Calls = {rank: of["calls"] for rank, of in told.items() if of}
    groups = {call["where"]: call["ranks"] or ranks for own in calls.values() for call in own}
    found = (one for where in groups for one in _of_group(where, groups[where], calls))
    return sorted(found, key=lambda one: len(one.absent))


def missing(stuck: Sequence[StuckCollective]) -> frozenset[int]:
    """The ranks for which the others wait; empty if that cannot be said.

    Such a rank waits for nobody; and where all wait, it is the one that most wait for.
    """
    waiting = frozenset[int]().union(*(one.waiting for one in stuck))
    absent = frozenset[int]().union(*(one.absent for one in stuck))
    among = absent - waiting or absent
    waits = {rank: sum(len(one.waiting) for one in stuck if rank in one.absent) for rank in among}
    found = frozenset(rank for rank in among if waits[rank] == max(waits.values()))
    return found if absent - waiting or 2 * len(found) < len(waiting) else frozenset()


def place(answer: Stacks) -> str:
    """The collectives that a rank waits in, as a paragraph after its stacks; else empty."""
    calls = answer.collectives.get("calls", ())
    names = sorted(_name(call) for call in calls if not call["done"])
    return f"\n\nIt waits in {'; '.join(names[:4])}." if names else ""


def _of_group(where: str, members: Sequence[int], calls: Calls) -> Iterator[StuckCollective]:
    own = {r: [call for call in calls[r] if call["where"] == where] for r in members if r in calls}
    pending = [call for of in own.values() for call in of if not call["done"]]
    first = min((call["number"] for call in pending), default=0)  # The others come after it.
    for name in sorted({_name(call) for call in pending if call["number"] == first}):
        its = {r: [call for call in own[r] if _name(call) == name] for r in own}
        waiting = frozenset(r for r in own if its[r] and not its[r][0]["done"])
        if absent := frozenset(r for r in own if not its[r]):
            called = (max(own[r], key=lambda call: call["number"], default=None) for r in absent)
            last = {_name(call) if call else "" for call in called}
            yield StuckCollective(name, waiting, absent, last.pop() if len(last) == 1 else "")


def _name(call: Mapping[str, Any]) -> str:
    number = f" number {call['number']}" if call["number"] else ""
    return f"{call['call']}{number} of {call['where']}"
