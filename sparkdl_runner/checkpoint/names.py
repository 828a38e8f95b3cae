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
    digests = [
        (digest, count) for digest, count in peers.gather_numbers([_number(repr(mine)), len(mine)])
    ]
    begins: dict[int, tuple[int, int]] = {}
    total = 0
    for digest, count in digests:
        if digest not in begins:
            begins[digest] = total, total + count
            total += count
    if len(begins) == 1:
        return [frozenset(mine)] * peers.size
    together = [0] * total
    own = digests[peers.rank]
    if digests.index(own) == peers.rank:
        together[slice(*begins[own[0]])] = mine
    together = peers.end_sum(peers.begin_sum(together))
    sets = {digest: frozenset(together[slice(*place)]) for digest, place in begins.items()}
    return [sets[digest] for digest, _ in digests]


def in_none(names: Iterable[str], ranks: Iterable[frozenset[int]]) -> set[str]:
    """Those of the names that none of some ranks has."""
    known = frozenset().union(*{id(rank_names): rank_names for rank_names in ranks}.values())
    return {name for name in names if _number(name) not in known}


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:_NUMBER_BYTES], "big")
