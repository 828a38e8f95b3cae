"""Which rank reads which file of a checkpoint from the storage; pure, and equal on all ranks.

A host reads a file that one of its ranks needs once, whoever of its ranks needs it. A file that
nobody needs is read by one rank of all, to be verified. So the bytes read are the checkpoint's
size times the hosts at most.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The files that one rank reads, and where it finds those that other ranks of its host read."""

    own: tuple[int, ...]
    """Files that it reads for itself alone, as numbers."""
    places: dict[int, tuple[int, int]]
    """Of each file that several ranks of the host need: the rank that reads it, and the byte of
    that rank's memory at which it begins."""
    checked: tuple[int, ...]
    """Files that it only verifies."""


def plan_of(
    rank: int, sizes: Sequence[int], needs: Sequence[Collection[int]], hosts: Sequence[int]
) -> Plan:
    """Plans a rank's part.

    Args:
        rank: The rank.
        sizes: Of each file, in bytes.
        needs: Of each rank, the numbers of the files that it needs.
        hosts: Of each rank, its host as any number.

    Returns:
        The plan, in which the ranks of a host agree on the places.
    """
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    wanted = Counter(file for other in local for file in needs[other])
    shared = sorted((file for file in wanted if wanted[file] > 1), key=lambda file: -sizes[file])
    # The largest file goes to the rank that has least to read, and so on.
    loads = [
        (sum(sizes[file] for file in needs[other] if wanted[file] == 1), other) for other in local
    ]
    heapq.heapify(loads)
    ends = dict.fromkeys(local, 0)
    places = {}
    for file in shared:
        load, reader = loads[0]
        heapq.heapreplace(loads, (load + sizes[file], reader))
        places[file] = reader, ends[reader]
        ends[reader] += sizes[file]
    unneeded = sorted(set(range(len(sizes))).difference(*needs), key=lambda file: -sizes[file])
    return Plan(
        own=tuple(sorted(file for file in needs[rank] if wanted[file] == 1)),
        places=places,
        checked=tuple(unneeded[rank :: len(hosts)]),
    )
