"""Finds ranks and hosts that are slower than the median, or differ from most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

# Networks and disks have other users, whose load comes and goes.
SHARED_FACTOR = 4.0
SHARED = ("exchange with other hosts", "writing to the disk", "reading the disk")
CLOCK_SECONDS = 1.0
Ranks = Sequence[Mapping[str, Any]]
"""What ``measure`` returned in each."""
Finding = tuple[list[int], str, bool]
"""Ranks of one host, what is wrong, and whether a training is better without them."""


def findings(
    ranks: Ranks, factor: float, ahead: float = 0.0, earlier: Sequence[Mapping[str, float]] = ()
) -> Iterator[Finding]:
    """Judges what the ranks have measured.

    Args:
        ranks: See ``Ranks``.
        factor: How many times as fast the median of the others is, beside what is slow.
        ahead: How far rank 0's clock is ahead of the driver's, in seconds.
        earlier: What ``rates_of_hosts`` returned in earlier runs.
    """
    now, hosts = rates_of_hosts(ranks), dict[str, list[Mapping[str, Any]]]()
    for rank in ranks:
        hosts.setdefault(rank["place"], []).append(rank)
    for what in dict.fromkeys(what for rank in ranks for what in rank["rates"]):
        rates = {rank["rank"]: rank["rates"][what] for rank in ranks if what in rank["rates"]}
        slow = slow_ones(rates, SHARED_FACTOR if what in SHARED else factor)
        for members in hosts.values():
            if own := [rank["rank"] for rank in members if rank["rank"] in slow]:
                pair = [amount(what, median(of[rank] for rank in own)) for of in (rates, slow)]
                yield own, f"slow: {what} {pair[0]}, {pair[1]} elsewhere", True
    for place, members in hosts.items():
        own = [rank["rank"] for rank in members]
        yield from ((own, fault, True) for rank in members for fault in rank["faults"])
        clocks = (rank.get("clock", [0.0]) for rank in (members[0], ranks[0]))
        seconds = ahead + median(here - first for here, first in zip(*clocks, strict=True))
        if abs(seconds) > CLOCK_SECONDS:
            yield own, f"clock {seconds:+.1f} s from the driver's", False
        usual = median([run[place] for run in earlier if place in run] or [0.0])
        if now.get(place, usual) * factor < usual:
            text = f"{amount('matrices', now[place])}, {amount('matrices', usual)} in earlier runs"
            yield own, f"slower than before: matrices {text}", False
    for what in ranks[0]["same"]:
        count = Counter(rank["same"].get(what, "none") for rank in ranks)
        most = max(count, key=lambda text: (count[text], text))
        for members in hosts.values():
            for text in {rank["same"].get(what, "none") for rank in members} - {most}:
                own = [rank["rank"] for rank in members if rank["same"].get(what, "none") == text]
                yield own, f"{what} {text}, {most} elsewhere", False


def slow_ones(rates: Mapping[int, float], factor: float) -> dict[int, float]:
    """The slow ranks, each with the median of the others."""
    slow = {}
    for rank, own in rates.items():
        usual = median([rate for other, rate in rates.items() if other != rank] or [own])
        if own * factor < usual:
            slow[rank] = usual
    return slow


def rates_of_hosts(ranks: Ranks) -> dict[str, float]:
    """The median rate of matrices of each host's ranks, with which later runs compare theirs."""
    rates: dict[str, list[float]] = {}
    for rank in ranks:
        if "matrices" in rank["rates"]:
            rates.setdefault(rank["place"], []).append(rank["rates"]["matrices"])
    return {place: float(f"{median(own):.3g}") for place, own in rates.items()}


def amount(what: str, rate: float) -> str:
    """A rate with its unit."""
    size, prefix = next((pair for pair in ((1e12, "T"), (1e9, "G")) if rate >= pair[0]), (1e6, "M"))
    return f"{rate / size:.3g} {prefix}{'FLOP' if what == 'matrices' else 'B'}/s"
