"""The ranks that were not the cause: one line for all that ended alike."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from sparkdl_runner.launch.wire.outcome import Outcome, Status, describe_exit

MOST_LINES = 10
MOST_CHARACTERS = 1000
_MOST_RANGES = 8


def consequences(outcomes: Sequence[Outcome]) -> list[str]:
    """A paragraph on the ranks that failed because something else had; none if none did."""
    alike: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.world.rank):
        if outcome.is_failure:
            alike.setdefault(_what_happened(outcome), []).append(outcome)
    if not alike:
        return []
    lines = [_line(what, ends) for what, ends in list(alike.items())[:MOST_LINES]]
    if count := sum(map(len, list(alike.values())[MOST_LINES:])):
        lines.append(f"and {count:,} more in other words, which are in the logs of these ranks")
    return ["As a consequence:\n" + indented("\n".join(lines))]


def returned_before(outcomes: Sequence[Outcome]) -> str:
    """Says of ranks that lost their peers that some of these had returned; "" if none had."""
    ranks = sorted(outcome.world.rank for outcome in outcomes if outcome.status == Status.RETURNED)
    if not ranks:
        return ""
    who = f"Rank {ranks[0]} has" if len(ranks) == 1 else f"Ranks {ranges(ranks)} have"
    return (
        f"{who} returned, so that there was nobody to communicate with: the ranks did not call the "
        "same collectives. Mostly one takes more steps than another, or calls something under if."
    )


def end_of(outcome: Outcome) -> str:
    """How a rank ended that did not raise."""
    if outcome.status.is_drivers_finding:
        return outcome.message
    if outcome.exit_code == -signal.SIGKILL and outcome.message:
        return f"was ended by SIGKILL. {outcome.message}"
    return describe_exit(outcome.exit_code)


def indented(text: str) -> str:
    """The text with each line moved to the right."""
    return "\n".join("  " + line for line in text.rstrip().splitlines())


def cut(text: str, most: int) -> str:
    """The text, of which so many characters are kept at most."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} characters more)"


def _what_happened(outcome: Outcome) -> str:
    if outcome.status.is_drivers_finding:
        text = outcome.message
    elif outcome.is_communication_error:
        text = f"lost its peers ({outcome.exception})"
    elif outcome.status == Status.FAILED:
        text = f"raised {outcome.exception}: {outcome.message}"
    else:
        text = end_of(outcome)
    return cut(text, MOST_CHARACTERS)


def _line(what: str, ends: Sequence[Outcome]) -> str:
    return f"{who(ends)} {'each ' if len(ends) > 1 else ''}{what}"


def who(ends: Sequence[Outcome]) -> str:
    """Ranks, which are in ascending order, and their hosts."""
    if len(ends) == 1:
        return f"rank {ends[0].world.rank} on host {ends[0].world.place}"
    hosts = {end.world.host_id for end in ends}
    where = f"{len(hosts):,} hosts" if len(hosts) > 1 else f"host {ends[0].world.place}"
    ranks = ranges(end.world.rank for end in ends)
    return f"{len(ends):,} ranks ({ranks}) on {where}"


def ranges(ranks: Iterable[int]) -> str:
    """Ascending numbers in words: 0 to 3, 5."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return ", ".join([*texts[:_MOST_RANGES], *(["…"] if len(texts) > _MOST_RANGES else [])])
