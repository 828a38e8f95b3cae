"""Which names the ranks have: they differ where each holds a stage, or a part of an optimizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sparkdl_runner.checkpoint.peers import Peers

_NUMBER_BYTES = 7


def names_of_ranks(peers: Peers, names: Iterable[str]) -> list[frozenset[int]]:
    """The names of each rank, as numbers; to be called by all ranks.

    Ranks with the same names tell them once.
    """
    mine = sorted(map(_number, names))
    told = [(one, count) for one, count in peers.gather_numbers([_number(repr(mine)), len(mine)])]
    begins: dict[int, tuple[int, int]] = {}
    total = 0
    for one, count in told:
        if one not in begins:
            begins[one] = total, total + count
            total += count
    if len(begins) == 1:
        return [frozenset(mine)] * peers.size
    together = [0] * total
    own = told[peers.rank]
    if told.index(own) == peers.rank:
        together[slice(*begins[own[0]])] = mine
    together = peers.end_sum(peers.begin_sum(together))
    sets = {one: frozenset(together[slice(*place)]) for one, place in begins.items()}
    return [sets[one] for one, _ in told]


def in_none(names: Iterable[str], ranks: Iterable[frozenset[int]]) -> set[str]:
    """Those of the names that none of some ranks has."""
    known = frozenset().union(*{id(one): one for one in ranks}.values())
    return {name for name in names if _number(name) not in known}


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:_NUMBER_BYTES], "big")
