"""The driver's watch over a gang: what hangs, and who is not heard of any more.

Its judgement needs all ranks: where one is stuck, all others wait for it in the next allreduce and
make no progress either. Three deadlines, each a setting:

- ``start_timeout_seconds``: all agents must find one another; and then each rank must be done with
  its imports, during which it is judged by nothing else.
- ``rendezvous_timeout_seconds``: no rank may wait so long in the backend's rendezvous.
- ``hang_timeout_seconds``: not for so long may all ranks together make no progress, or a single
  process show no sign of life.

An agent that is not heard for ``heartbeat_timeout_seconds``, or whose connection ends without a
word, is lost: its executor died, its host, or the network between.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparkdl_runner.backends import Backend
from sparkdl_runner.config import RunConfig
from sparkdl_runner.wire.outcome import HUNG, LOST, Outcome
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import World

CHECK_SECONDS = 0.25
# A connection may break for a moment; and Spark often knows why an executor is gone.
GONE_SECONDS = 2.5
# A driver that was itself paused for so long has heard nobody meanwhile.
PAUSE_SECONDS = 5.0


@dataclass(kw_only=True)
class _Rank:
    """What is known of one agent and its rank."""

    host: str
    heard_at: float
    world: World | None = None
    placed_at: float = 0.0
    signs: VitalSigns | None = None
    looked_at: float = 0.0
    starting_at: float = 0.0
    gone_at: float | None = None
    has_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong with a gang.

    Attributes:
        failures: The ranks that are to blame, and those that wait for them.
        launch_problem: Or why the gang never came together.
    """

    failures: tuple[Outcome, ...] = ()
    launch_problem: str = ""


@dataclass(kw_only=True)
class Watch:
    """Watches one attempt.

    Args:
        config: Its deadlines.
        backend: Tells a rank that waits for others from one that is waited for.
        num_proc: How many ranks there are.
        ask_stacks: Returns the Python stacks of all ranks that answer, by rank.
        on_verdict: Called once at most, from the watch's thread.
        lost_slots: Why the ranks can never start, as long as none has; None if they may.
        now: The clock.
    """

    config: RunConfig
    backend: Backend
    num_proc: int
    ask_stacks: Callable[[], dict[int, str]]
    on_verdict: Callable[[Verdict], None]
    lost_slots: Callable[[], str | None] = lambda: None
    now: Callable[[], float] = time.monotonic
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _first_at: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._thread = threading.Thread(target=self._run, name="sparkdl-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching; what is found after this is of no interest. May be called twice."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def present(self, partition: int, host: str) -> None:
        """An agent has come, or come back."""
        with self._lock:
            now = self.now()
            self._first_at = now if self._first_at is None else self._first_at
            rank = self._ranks.setdefault(partition, _Rank(host=host, heard_at=now))
            rank.heard_at, rank.gone_at = now, None

    def placed(self, partition: int, world: World) -> None:
        """An agent has learnt of all the others, and begins its rank."""
        with self._lock:
            rank = self._ranks.setdefault(partition, _Rank(host=world.host, heard_at=self.now()))
            rank.world, rank.placed_at = world, self.now()

    def heard(self, partition: int) -> None:
        """An agent has said something."""
        with self._lock:
            if partition in self._ranks:
                self._ranks[partition].heard_at = self.now()

    def busy(self, partition: int) -> None:
        """An agent speaks faster than it is listened to; what it has seen comes later."""
        with self._lock:
            if partition in self._ranks:
                rank = self._ranks[partition]
                rank.heard_at = rank.looked_at = self.now()

    def vital_signs(self, world: World, signs: VitalSigns) -> None:
        """An agent has looked at its worker."""
        with self._lock:
            for rank in self._ranks.values():
                if rank.world == world:
                    now = self.now()
                    if not signs.has_begun:
                        rank.starting_at = now
                    rank.signs = signs
                    rank.heard_at = rank.looked_at = now

    def ended(self, world: World) -> None:
        """A rank has ended, in whatever way; nothing is expected of it any more."""
        with self._lock:
            for rank in self._ranks.values():
                if rank.world == world:
                    rank.has_ended = True

    def gone(self, partition: int) -> None:
        """An agent's connection has ended."""
        with self._lock:
            rank = self._ranks.get(partition)
            if rank is not None and not rank.has_ended:
                rank.gone_at = self.now()

    def running(self) -> set[int]:
        """The ranks that have begun and not ended, lost ones among them."""
        with self._lock:
            return {rank.world.rank for rank in self._running() if rank.world is not None}

    def missing(self) -> list[Outcome]:
        """Ranks whose agents have gone without a word, however shortly ago."""
        with self._lock:
            return [
                _lost(rank.world, _GONE)
                for rank in self._ranks.values()
                if rank.gone_at is not None and not rank.has_ended and rank.world is not None
            ]

    def check(self) -> Verdict | None:
        """What is wrong, if anything."""
        with self._lock:
            ranks = [rank for rank in self._ranks.values() if not rank.has_ended]
            problem = self._start_problem()
            if problem is not None:
                return Verdict(launch_problem=problem)
            lost = [self._lost(rank) for rank in ranks]
            failures = tuple(failure for failure in lost if failure is not None)
            if failures:
                return Verdict(failures=failures)
            stuck = self._stuck([rank for rank in ranks if rank.signs is not None])
        return Verdict(failures=self._blame(stuck)) if stuck else None

    def _run(self) -> None:
        checked_at = self.now()
        while not self._closed.wait(CHECK_SECONDS):
            now = self.now()
            if now - checked_at > PAUSE_SECONDS:
                self._forgive(now - checked_at)
            checked_at = now
            try:
                verdict = self.check()
                if verdict is not None and not self._closed.is_set():
                    self.on_verdict(verdict)
                    return
            except Exception as error:  # To watch on is worth more than to be right once.
                print(
                    f"sparkdl_runner: the watch over the ranks stumbled: {error!r}", file=sys.stderr
                )

    def _forgive(self, seconds: float) -> None:
        """Moves on what was last seen: this process did not run, and so saw nothing."""
        with self._lock:
            for rank in self._ranks.values():
                rank.heard_at += seconds
                rank.looked_at += seconds
                rank.placed_at += seconds
                rank.gone_at = None if rank.gone_at is None else rank.gone_at + seconds

    def _start_problem(self) -> str | None:
        limit = self.config.start_timeout_seconds
        if self._first_at is None:
            return self.lost_slots()
        if self.now() - self._first_at < limit:
            return None
        # Where one has learnt of all the others, all are there, whether or not they reach us.
        if any(rank.world is not None for rank in self._ranks.values()):
            return None
        hosts = sorted({rank.host for rank in self._ranks.values()})
        return (
            f"{len(self._ranks)} of {self.num_proc} ranks have started on {', '.join(hosts)}, and "
            f"the others have not within start_timeout_seconds={limit:g}: their executors cannot "
            "start Python, or cannot reach the driver. Look at the executors' logs, or raise "
            "RunConfig.start_timeout_seconds where starting takes longer."
        )

    def _lost(self, rank: _Rank) -> Outcome | None:
        now, limit = self.now(), self.config.heartbeat_timeout_seconds
        if rank.world is None:
            return None
        if rank.gone_at is not None and now - rank.gone_at > GONE_SECONDS:
            return _lost(rank.world, _GONE)
        if now - rank.heard_at > limit:
            return _lost(
                rank.world,
                f"has not been heard of for {now - rank.heard_at:.0f} s "
                f"(heartbeat_timeout_seconds={limit:g}): its host or the network between it and "
                "the driver is down.",
            )
        return None

    def _stuck(self, ranks: Sequence[_Rank]) -> list[tuple[_Rank, str]]:
        """Which ranks are stuck, with a sentence on each."""
        starting = [rank for rank in ranks if rank.signs and not rank.signs.has_begun]
        late = self._late(starting)
        if late:
            return late
        ranks = [rank for rank in ranks if rank not in starting]
        seen = [(rank, rank.signs, self.now() - rank.looked_at) for rank in ranks]
        limit = self.config.hang_timeout_seconds
        if limit is not None:
            silent = [
                (
                    rank,
                    _SILENT.format(signs.silent_seconds + age, limit, _STATES.get(signs.state, "")),
                )
                for rank, signs, age in seen
                if signs is not None and signs.silent_seconds + age > limit
            ]
            if silent:
                return silent
            idle = [signs.idle_seconds + age for _, signs, age in seen if signs is not None]
            # One that never reached us may well be the one that works.
            all_known = len(self._ranks) == self.num_proc
            if idle and all_known and len(idle) == len(self._running()) and min(idle) > limit:
                found = [
                    (rank, _IDLE.format(seconds, limit), _STATES.get(rank.signs.state, ""))
                    for (rank, _, _), seconds in zip(seen, idle, strict=True)
                    if rank.signs is not None
                ]
                halted = [one for one in found if one[2]]  # The others wait for it.
                return [(rank, sentence + state + ".") for rank, sentence, state in halted or found]
        limit = self.config.rendezvous_timeout_seconds
        # Time in which a rank was still importing does not count.
        since_all_began = self.now() - max((rank.starting_at for rank in ranks), default=0.0)
        joining = [min(signs.joining_seconds, since_all_began) for _, signs, _ in seen if signs]
        if joining and not starting and max(joining) > limit:
            absent = [rank for rank, signs, _ in seen if signs and signs.joining_seconds == 0]
            reason = (
                "has not joined its peers, who have waited for it"
                if absent
                else "could not join its peers, though all of them try; it has waited"
            )
            return [
                (
                    rank,
                    f"{reason} for {max(joining):.0f} s (rendezvous_timeout_seconds={limit:g}).",
                )
                for rank in absent or ranks
            ]
        return []

    def _late(self, starting: Sequence[_Rank]) -> list[tuple[_Rank, str]]:
        """Which ranks are not done with their imports in time, with a sentence on each."""
        limit = self.config.start_timeout_seconds
        return [
            (
                rank,
                _LATE.format(
                    ", ".join(self.backend.imports), limit, _STATES.get(rank.signs.state, "")
                ),
            )
            for rank in starting
            if rank.signs is not None and self.now() - rank.placed_at > limit
        ]

    def _running(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if not rank.has_ended]

    def _blame(self, stuck: list[tuple[_Rank, str]]) -> tuple[Outcome, ...]:
        """The stuck ranks with their stacks; those that wait for others are not the cause."""
        stacks = self.ask_stacks()
        failures = [
            Outcome(
                world=rank.world,
                status=HUNG,
                ended_at=time.time(),
                message=message,
                traceback=stacks.get(rank.world.rank, ""),
                is_communication_error=self._waits(stacks.get(rank.world.rank, "")),
            )
            for rank, message in stuck
            if rank.world is not None
        ]
        return tuple(failures)

    def _waits(self, stacks: str) -> bool:
        places = (*self.backend.waiting_in, *self.backend.may_wait_in)
        return any(place in stacks for place in places)


def _lost(world: World, message: str) -> Outcome:
    return Outcome(world=world, status=LOST, ended_at=time.time(), message=message)


_GONE = (
    "is lost: its Spark task ended without a word. Its executor was killed, or died, for example "
    "of a memory limit."
)
_LATE = (
    "has not begun the function, for which it first imports {}, within "
    "start_timeout_seconds={:g}{}. Its host is short of processor time, or its packages lie on a "
    "slow disk: give it more, or raise RunConfig.start_timeout_seconds."
)
_SILENT = "has shown no sign of life for {:.0f} s (hang_timeout_seconds={:g}){}."
_IDLE = (
    "has made no progress for {:.0f} s (hang_timeout_seconds={:g}), and neither has any other rank"
)
_STATES = {
    "T": ": its process is stopped (SIGSTOP)",
    "t": ": its process is stopped by a debugger",
    "D": ": its process waits in the kernel, as for a disk or a network drive that is gone",
    "Z": ": its process is dead and not yet buried",
}
