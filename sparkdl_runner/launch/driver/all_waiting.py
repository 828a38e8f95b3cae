"""Messages about ranks that all wait in a collective: which hosts to look at, and their stacks."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import stuck_collectives
from sparkdl_runner.launch.driver.consequences import (
    MOST_LINES,
    cut,
    indented,
    returned_before,
    who,
)
from sparkdl_runner.launch.driver.deadlines import LEFT_SECONDS
from sparkdl_runner.launch.wire.messages import Stacks
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World

MOST_HOSTS = 10
MOST_STACK_CHARACTERS = 10_000
_THREAD = re.compile(r"(?m)(?<=hread )(0x[0-9a-f]+|\d+)|^\d+$")


def sentence(worlds: Sequence[World], stacks: Mapping[int, Stacks], waited: str) -> str:
    """Says that all wait, and between which hosts to look.

    Args:
        worlds: Of the ranks that wait, which are all that run.
        stacks: What they answered, by rank.
        waited: For how long, and which deadline they missed.
    """
    hosts = {world.host_id: world for world in worlds}
    if len(worlds) == 1:
        return f"Rank {worlds[0].rank} is the last that runs, and waits for others: it {waited}"
    text = f"All {len(worlds):,} ranks wait for one another, and none is late: each {waited}"
    places = set(_places(worlds, stacks).values())
    if links := _broken_links(worlds, stacks):
        return f"{text} Messages are not acknowledged {links}: look at the network there."
    if stuck := stuck_collectives.find([world.rank for world in worlds], stacks):
        of_the_cause = [one for one in stuck if one.absent <= stuck_collectives.missing(stuck)]
        named = " ".join(map(str, (of_the_cause or stuck)[:3]))
        return f"{text} {named} Ranks must call the same collectives in the same order."
    if len(places) > 1:
        apart = [str(world.rank) for world in elsewhere(worlds, stacks)]
        where = f", and rank {' and '.join(apart)} not where most do" if apart else ""
        text += (
            f" They wait at {len(places):,} places{where}: ranks that call different collective "
            "operations, or the same in another order, wait like this for ever."
        )
    if len(hosts) == 1:
        return f"{text} All are on host {worlds[0].host}, so no network between hosts is to blame."
    return f"{text} Look at the network between {_named(hosts.values())}."


def elsewhere(worlds: Sequence[World], stacks: Mapping[int, Stacks]) -> list[World]:
    """The ranks that wait at another place than most, if most wait at one."""
    places = _places(worlds, stacks)
    usual, count = Counter(places.values()).most_common(1)[0] if places else ("", 0)
    if 2 * count <= len(places):
        return []
    return [world for world in worlds if places.get(world.rank, usual) != usual]


def collective_wait_message(
    waiting: Sequence[Outcome], returned: Sequence[World], config: RunConfig
) -> str:
    """The notice that ranks wait for others that have returned, long before the deadline.

    Args:
        waiting: The ranks that still run, with their stacks.
        returned: The others.
        config: Has the deadline.
    """
    limit = config.hang_timeout_seconds
    ends = [
        Outcome(world=world, status=Status.RETURNED, ended_at=time.time()) for world in returned
    ]
    then = "waits for ever (hang_timeout_seconds=None)"
    if limit is not None:
        then = f"ends after hang_timeout_seconds={limit:g}"
    message = (
        f"{who(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for other ranks, without "
        f"progress for {LEFT_SECONDS:g} s. {returned_before(ends)} If nothing changes, the run "
        f"{then}; cancel it to have it end now."
    )
    return "\n".join([message, *grouped_stacks(waiting)])


def grouped_stacks(outcomes: Sequence[Outcome]) -> list[str]:
    """The stacks of all, each told once with the ranks that have it."""
    alike: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        alike.setdefault(_THREAD.sub("", outcome.traceback), []).append(outcome)
    groups = sorted(alike.values(), key=len)
    paragraphs = [
        f"Stacks of {who(ends)}:\n{indented(cut(ends[0].traceback, MOST_STACK_CHARACTERS))}"
        for ends in groups[:MOST_LINES]
    ]
    if count := sum(map(len, groups[MOST_LINES:])):
        paragraphs.append(f"The stacks of {count:,} more ranks differ from these.")
    return paragraphs


def _broken_links(worlds: Sequence[World], stacks: Mapping[int, Stacks]) -> str:
    """Between which hosts messages are not acknowledged; empty if that is not known."""
    at = {world.address: world for world in worlds}
    links = {
        tuple(sorted((world.host_rank, at[address].host_rank)))
        for world in worlds
        if world.rank in stacks
        for address in stacks[world.rank].unanswered
        if address in at and at[address].host_id != world.host_id
    }
    hosts = {world.host_rank: world for world in worlds}
    pairs = [
        f"between {_named(hosts[host_rank] for host_rank in link)}"
        for link in sorted(links)[:MOST_HOSTS]
    ]
    more = [f"{len(links) - MOST_HOSTS:,} more pairs"] if len(links) > MOST_HOSTS else []
    return ", ".join([*pairs, *more])


def _places(worlds: Sequence[World], stacks: Mapping[int, Stacks]) -> dict[int, str]:
    ranks = [world.rank for world in worlds if world.rank in stacks]
    return {rank: _main_thread(stacks[rank].text) for rank in ranks}


def _main_thread(text: str) -> str:
    """The main thread's place in the user's and the backend's code, the latter shown last."""
    return _THREAD.sub("", text.rpartition("\n\n")[2])


def _named(worlds: Iterable[World]) -> str:
    """Hosts, each with its address, as hosts may share a name."""
    names = [f"{world.host} ({world.address})" for world in worlds]
    if len(names) > MOST_HOSTS:
        return ", ".join(names[:MOST_HOSTS]) + f" and {len(names) - MOST_HOSTS:,} more hosts"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
