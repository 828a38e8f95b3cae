"""Which names the ranks have: they differ where each holds a stage, or a part of an optimizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sparkdl_runner.checkpoint.peers import Peers

_NUMBER_BYTES = 7


def names_of_ranks(peers: Peers, names: Iterable[str]) -> list[frozenset[int]]:
    """The names of each rank, as numbers; to be called by all ranks."""
    mine = sorted(map(_number, names))
    if len(set(peers.gather_text(hashlib.sha256(repr(mine).encode()).hexdigest()))) == 1:
        return [frozenset(mine)] * peers.size
    return [frozenset(numbers) for numbers in peers.gather_numbers(mine)]


def in_none(names: Iterable[str], ranks: Iterable[frozenset[int]]) -> set[str]:
    """Those of the names that none of some ranks has."""
    known = frozenset().union(*ranks)
    return {name for name in names if _number(name) not in known}


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:_NUMBER_BYTES], "big")
