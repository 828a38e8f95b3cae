"""Which rank misses a deadline, judged from what was last seen of all of them.

Where one rank is stuck, all others wait for it in the next allreduce and make no progress either,
so a hang can only be told from all ranks together. Each deadline is a setting of ``RunConfig``:

- ``start_timeout_seconds``: all agents must find one another. Then each rank must be done with its
  imports, during which it is judged by nothing else.
- ``rendezvous_timeout_seconds``: no rank may wait so long in the backend's rendezvous.
- ``hang_timeout_seconds``: not for so long may all ranks together make no progress, or a single
  process show no sign of life.
- ``heartbeat_timeout_seconds``: an agent that is not heard for so long is lost. So is one whose
  connection ends without a report and stays away: its executor died, its host, or the network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.wire.messages import VitalSigns
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World

# A connection may break for a moment; and Spark often knows why an executor is gone.
GONE_SECONDS = 2.5
# Ranks that have done nothing for so long, after another has returned, mostly wait for it in vain.
LEFT_SECONDS = 60.0

_GONE = (
    "is lost: its Spark task ended without a word. Its executor was killed, or died, for example "
    "of a memory limit."
)
_UNHEARD = (
    "has not been heard of for {seconds:.0f} s (heartbeat_timeout_seconds={limit:g}): its host or "
    "the network between it and the driver is down."
)
_RETURNED = "had returned, and "
_LATE = (
    "has not begun the function, for which it first imports {imports}, within "
    "start_timeout_seconds={limit:g}{state}. Its host is short of processor time, or its packages "
    "lie on a slow disk: give it more, or raise RunConfig.start_timeout_seconds."
)
_SILENT = (
    "has shown no sign of life for {signs.silent_seconds:.0f} s "
    "(hang_timeout_seconds={limit:g}){state}."
)
_IDLE = (
    "has made no progress for {signs.idle_seconds:.0f} s (hang_timeout_seconds={limit:g}), and "
    "neither has any other rank{state}."
)
# States of proc(5) that explain why a process does nothing.
_STATES = {
    "T": ": its process is stopped (SIGSTOP)",
    "t": ": its process is stopped by a debugger",
    "D": ": its process waits in the kernel, as for a disk or a network drive that is gone",
    "Z": ": its process is a zombie: it has ended, and its parent has not noticed",
}


@dataclass(kw_only=True)
class SeenRank:
    """The last report of one agent and its rank; times are by the watch's clock."""

    host: str
    heard_at: float
    world: World | None = None
    """Its world; None until ranks are assigned."""
    placed_at: float = 0.0
    signs: VitalSigns | None = None
    signs_at: float = 0.0
    importing_at: float = 0.0
    """When it was last seen to import what its backend needs."""
    gone_at: float | None = None
    """When its connection ended; None while it is there."""
    returned_at: float | None = None
    """When its function was first seen to have returned; its process may take long to end."""
    ended_at: float | None = None
    """When it ended, in whatever way; None while it runs."""


Looks = Sequence[tuple[SeenRank, VitalSigns]]
Stuck = list[tuple[SeenRank, str]]


def start_problem(
    seen: Sequence[SeenRank], since_first: float, num_proc: int, config: RunConfig
) -> str | None:
    """Why the agents do not find one another, so many seconds after the first one came."""
    limit = config.start_timeout_seconds
    # An agent that has its place has learnt of all others, whether or not they reach the driver.
    if since_first < limit or any(rank.world is not None for rank in seen):
        return None
    hosts = ", ".join(sorted({rank.host for rank in seen}))
    return (
        f"{len(seen)} of {num_proc} ranks have started on {hosts}, and the others have not within "
        f"start_timeout_seconds={limit:g}: their executors cannot start Python, or cannot reach "
        "the driver. Look at the executors' logs. Where a firewall is in the way, open ports and "
        "name them with RunConfig.port_range; where hosts have several networks, name the one "
        "that all share with RunConfig.network_interface. Raise RunConfig.start_timeout_seconds "
        "where starting takes longer."
    )


def lost_ranks(running: Sequence[SeenRank], now: float, config: RunConfig) -> list[Outcome]:
    """The ranks whose agents are not heard any more.

    A rank that has returned counts as lost only once no other rank works: none waits for it, and
    its host may come back.
    """
    limit = config.heartbeat_timeout_seconds
    lost = []
    for rank in [rank for rank in running if rank.returned_at is None] or running:
        seconds = now - rank.heard_at
        if rank.gone_at is not None and now - rank.gone_at > GONE_SECONDS:
            lost += gone_ranks([rank])
        elif rank.world is not None and seconds > limit:
            lost.append(_lost(rank, rank.world, _UNHEARD.format(seconds=seconds, limit=limit)))
    return lost


def is_silent(lost: Outcome) -> bool:
    """Whether a lost rank's connection was still there: then Spark may not know of the loss."""
    return lost.status == Status.LOST and not lost.message.endswith(_GONE)


def with_reason(failure: Outcome, reason: str) -> Outcome:
    """A lost rank with Spark's reason, or another failure as it is."""
    if failure.status != Status.LOST:
        return failure
    message = f"is lost: {reason}."
    if failure.message.startswith(_RETURNED):
        message = (
            f"{_RETURNED}{message} Spark then ended all ranks, before rank 0's value had come."
        )
    return replace(failure, message=message)


def gone_ranks(running: Sequence[SeenRank]) -> list[Outcome]:
    """The ranks whose connection has ended without a report, however shortly ago."""
    gone = [rank for rank in running if rank.gone_at is not None]
    return [_lost(rank, rank.world, _GONE) for rank in gone if rank.world is not None]


def stuck_ranks(
    seen: Sequence[SeenRank], now: float, config: RunConfig, *, all_known: bool, imports: str
) -> Stuck:
    """The ranks that miss a deadline, each with a sentence; all of them miss the same one.

    Args:
        seen: All ranks; those that have ended or returned miss none.
        now: The time.
        config: The run's settings.
        all_known: Whether all agents have reached the driver. One that has not may be the one that
            works.
        imports: What ranks import before the function begins.
    """
    running = [rank for rank in seen if rank.returned_at is None and rank.ended_at is None]
    # The end of a rank is progress: those that waited for it go on from there.
    ends = [at for rank in seen for at in (rank.returned_at, rank.ended_at) if at is not None]
    last_end = max(ends, default=-inf)
    # Signs age only up to the last report: ``lost_ranks`` judges agents that are silent.
    looks = [
        (rank, _aged(rank.signs, rank.heard_at - rank.signs_at)) for rank in running if rank.signs
    ]
    # Their agents have a rank, and have not reported on their workers yet.
    unseen = [rank for rank in running if rank.world and not rank.signs]
    importing = [(rank, signs) for rank, signs in looks if not signs.has_begun]
    begun = [(rank, signs) for rank, signs in looks if signs.has_begun]
    stuck = _late(importing, now, config.start_timeout_seconds, imports)
    if not stuck and config.hang_timeout_seconds is not None:
        stuck = _silent(begun, config.hang_timeout_seconds)
        all_looked_at = all_known and len(begun) == len(running)
        if not stuck and all_looked_at and now - last_end > config.hang_timeout_seconds:
            stuck = _idle(begun, config.hang_timeout_seconds)
    if not stuck and not importing:
        stuck = _not_joined(begun, unseen, now, config.rendezvous_timeout_seconds)
    return stuck


def left_waiting(
    seen: Sequence[SeenRank], now: float, config: RunConfig, *, all_known: bool
) -> Stuck:
    """The ranks that still run, if others have ended and none has made progress for a minute.

    Empty if ``hang_timeout_seconds`` is shorter: that limit finds them sooner.
    """
    limit = config.hang_timeout_seconds
    if not any(rank.ended_at or rank.returned_at for rank in seen):
        return []
    if limit is not None and limit <= LEFT_SECONDS:
        return []
    sooner = replace(config, hang_timeout_seconds=LEFT_SECONDS)
    return stuck_ranks(seen, now, sooner, all_known=all_known, imports="")


def _aged(signs: VitalSigns, seconds: float) -> VitalSigns:
    """The signs of a rank that has done nothing since they were taken."""
    return replace(
        signs,
        silent_seconds=signs.silent_seconds + seconds,
        idle_seconds=signs.idle_seconds + seconds,
    )


def _late(importing: Looks, now: float, limit: float, imports: str) -> Stuck:
    return [
        (rank, _LATE.format(imports=imports, limit=limit, state=_STATES.get(signs.state, "")))
        for rank, signs in importing
        if now - rank.placed_at > limit
    ]


def _silent(begun: Looks, limit: float) -> Stuck:
    return [
        (rank, _SILENT.format(signs=signs, limit=limit, state=_STATES.get(signs.state, "")))
        for rank, signs in begun
        if signs.silent_seconds > limit
    ]


def _idle(begun: Looks, limit: float) -> Stuck:
    if any(signs.idle_seconds <= limit for _, signs in begun):
        return []
    # The others wait for a rank whose process is stopped.
    halted = [(rank, signs) for rank, signs in begun if signs.state in _STATES]
    return [
        (rank, _IDLE.format(signs=signs, limit=limit, state=_STATES.get(signs.state, "")))
        for rank, signs in halted or begun
    ]


def _not_joined(begun: Looks, unseen: list[SeenRank], now: float, limit: float) -> Stuck:
    # Time in which a rank was still importing does not count.
    since_all_began = now - max((rank.importing_at for rank, _ in begun), default=now)
    seconds = min(since_all_began, max((signs.joining_seconds for _, signs in begun), default=0.0))
    if seconds <= limit:
        return []
    absent = unseen + [rank for rank, signs in begun if signs.joining_seconds == 0]
    reason = (
        "has not joined its peers, who have waited for it"
        if absent
        else "could not join its peers, though all of them try; it has waited"
    )
    message = f"{reason} for {seconds:.0f} s (rendezvous_timeout_seconds={limit:g})."
    return [(rank, message) for rank in absent or [rank for rank, _ in begun]]


def _lost(rank: SeenRank, world: World, message: str) -> Outcome:
    if rank.returned_at is not None:
        message = _RETURNED + message
    return Outcome(world=world, status=Status.LOST, ended_at=time.time(), message=message)
