"""The driver's watch over an attempt: notes when each rank was heard, and which miss a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import all_waiting, deadlines, stuck_collectives
from sparkdl_runner.launch.driver.deadlines import SeenRank
from sparkdl_runner.launch.wire.messages import Stacks, VitalSigns
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World

CHECK_SECONDS = 0.25
# After a pause of this length the driver itself has missed reports.
PAUSE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The fault of an attempt: ranks that have failed, or why they never came together."""

    failures: tuple[Outcome, ...] = ()
    launch_problem: str = ""


@dataclass(kw_only=True)
class Watch:
    """Watches one attempt.

    Args:
        config: Its deadlines.
        backend: Tells a rank that waits for others from one that is waited for.
        num_proc: How many ranks there are.
        ask_stacks: Returns the stacks of all ranks that answer, by rank.
        on_verdict: Called once at most, from the watch's thread.
        lost_slots: Why the ranks will not start, asked until they have their places with how many
            agents are there, and how many seconds ago the first one came; None if they may.
        now: The clock.
    """

    config: RunConfig
    backend: Backend
    num_proc: int
    ask_stacks: Callable[[], dict[int, Stacks]]
    on_verdict: Callable[[Verdict], None]
    lost_slots: Callable[[int, float], str | None] = lambda there, seconds: None
    now: Callable[[], float] = time.monotonic
    _ranks: dict[int, SeenRank] = field(default_factory=dict)
    """The ranks, by partition."""
    _placed: dict[int, SeenRank] = field(default_factory=dict)
    """The same by rank, once its place is known."""
    _first_at: float | None = None
    _refusal: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _looked_for_left_at: float = 0.0
    _has_told_of_left: bool = False
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
            rank = self._ranks.setdefault(partition, SeenRank(host=host, heard_at=now))
            rank.heard_at, rank.gone_at = now, None

    def refuse(self, problem: str) -> None:
        """The agents can have no ranks, for this reason."""
        self._refusal = problem

    def placed(self, partition: int, world: World) -> None:
        """An agent has learnt of all the others, and begins its rank."""
        with self._lock:
            now = self.now()
            rank = self._ranks.setdefault(partition, SeenRank(host=world.host, heard_at=now))
            rank.world, rank.placed_at = world, now
            self._placed[world.rank] = rank

    def heard(self, partition: int) -> None:
        """An agent has said something."""
        with self._lock:
            if partition in self._ranks:
                self._ranks[partition].heard_at = self.now()

    def busy(self, partition: int) -> None:
        """An agent speaks faster than it is listened to, so its newest vital signs come later."""
        with self._lock:
            if partition in self._ranks:
                rank = self._ranks[partition]
                rank.heard_at = rank.signs_at = self.now()

    def vital_signs(self, world: World, signs: VitalSigns) -> None:
        """An agent has looked at its worker."""
        with self._lock:
            rank = self._placed.get(world.rank)
            if rank is not None:
                rank.signs = signs
                rank.heard_at = rank.signs_at = self.now()
                if not signs.has_begun:
                    rank.importing_at = rank.signs_at
                if signs.has_returned and rank.returned_at is None:
                    rank.returned_at = rank.signs_at

    def ended(self, world: World) -> None:
        """A rank has ended, in whatever way; nothing is expected of it any more."""
        with self._lock:
            rank = self._placed.get(world.rank)
            if rank is not None:
                rank.ended_at = self.now()

    def gone(self, partition: int) -> None:
        """An agent's connection has ended."""
        with self._lock:
            rank = self._ranks.get(partition)
            if rank is not None and rank.ended_at is None:
                rank.gone_at = self.now()

    def replaced(self, partition: int) -> bool:
        """Spark has started a rank's task anew, so that nobody needs to wait for the first.

        Returns:
            Whether the rank had not ended.
        """
        with self._lock:
            rank = self._ranks.get(partition)
            if rank is not None and rank.ended_at is None:
                rank.gone_at = self.now() - deadlines.GONE_SECONDS
                return True
            return False

    def running(self) -> set[int]:
        """The ranks that have begun and not ended, lost ones among them."""
        with self._lock:
            return {rank.world.rank for rank in self._running() if rank.world is not None}

    def partitions_of(self, ranks: Collection[int]) -> set[int]:
        """The partitions of ranks that have had their places."""
        with self._lock:
            seen = self._ranks.items()
            return {key for key, rank in seen if rank.world and rank.world.rank in ranks}

    def unheard(self) -> set[int]:
        """The partitions whose agents have never come."""
        with self._lock:
            return set(range(self.num_proc)) - self._ranks.keys()

    def missing(self) -> list[Outcome]:
        """Ranks whose agents have gone without a word, however shortly ago."""
        with self._lock:
            return deadlines.gone_ranks(self._running())

    def check(self) -> Verdict | None:
        """The fault of the attempt, if there is one."""
        with self._lock:
            now = self.now()
            problem = self._launch_problem(now)
            if problem is not None:
                return Verdict(launch_problem=problem)
            lost = deadlines.lost_ranks(self._running(), now, self.config)
            if lost:
                return Verdict(failures=tuple(lost))
            stuck = deadlines.stuck_ranks(
                list(self._ranks.values()),
                now,
                self.config,
                all_known=len(self._ranks) == self.num_proc,
                imports=", ".join(self.backend.imports),
            )
        return Verdict(failures=self._hung(stuck)) if stuck else None

    def left_waiting(self) -> str:
        """The notice that ranks wait for others that have returned; "" if not, or told already."""
        with self._lock:
            now = self.now()
            # Stacks are asked for, which must not happen all the time.
            if self._has_told_of_left or now - self._looked_for_left_at < deadlines.LEFT_SECONDS:
                return ""
            seen = list(self._ranks.values())
            all_known = len(self._ranks) == self.num_proc
            stuck = deadlines.left_waiting(seen, now, self.config, all_known=all_known)
        if not stuck:
            return ""
        self._looked_for_left_at = now
        waiting = self._hung(stuck)
        if not all(outcome.is_communication_error for outcome in waiting):
            return ""
        self._has_told_of_left = True
        running = {outcome.world.rank for outcome in waiting}
        returned = [rank.world for rank in seen if rank.world and rank.world.rank not in running]
        return all_waiting.collective_wait_message(waiting, returned, self.config)

    def _run(self) -> None:
        checked_at = self.now()
        while not self._closed.wait(CHECK_SECONDS):
            if (paused := self.now() - checked_at) > PAUSE_SECONDS:
                self._forgive(paused)
            try:
                verdict = self.check()
                if verdict is not None and not self._closed.is_set():
                    self.on_verdict(verdict)
                    return
                if notice := self.left_waiting():
                    tell(notice)
            except Exception as error:  # A watch that ended here would let ranks hang for ever.
                tell(f"the ranks could not be judged: {error!r}")
            checked_at = self.now()  # Asking for stacks takes long, and is no pause.

    def _forgive(self, seconds: float) -> None:
        """Moves on what was last seen: this process did not run, and so saw nothing."""
        with self._lock:
            for rank in self._ranks.values():
                rank.heard_at += seconds
                rank.signs_at += seconds
                rank.placed_at += seconds
                rank.gone_at = None if rank.gone_at is None else rank.gone_at + seconds

    def _launch_problem(self, now: float) -> str | None:
        if self._refusal:
            return self._refusal
        seen = list(self._ranks.values())
        if any(rank.world is not None for rank in seen):
            return None
        there = sum(rank.gone_at is None for rank in seen)
        seconds = 0.0 if self._first_at is None else now - self._first_at
        problem = self.lost_slots(there, seconds)
        if problem is not None or self._first_at is None:
            return problem
        return deadlines.start_problem(seen, seconds, self.num_proc, self.config)

    def _running(self) -> list[SeenRank]:
        return [rank for rank in self._ranks.values() if rank.ended_at is None]

    def _hung(self, stuck: deadlines.Stuck) -> tuple[Outcome, ...]:
        """The stuck ranks with their stacks, which tell those that wait for others."""
        stacks = self.ask_stacks()
        placed = [(rank.world, message) for rank, message in stuck if rank.world is not None]
        found = stuck_collectives.find([world.rank for world, _ in placed], stacks)
        missing = stuck_collectives.missing(found)
        waiting_in = (*self.backend.waiting_in, *self.backend.may_wait_in)
        outcomes = [
            Outcome(
                world=world,
                status=Status.HUNG,
                ended_at=time.time(),
                message=" ".join(
                    [message, *(str(one) for one in found if world.rank in one.absent)]
                ),
                traceback=(stack := _text(stacks, world.rank)),
                is_communication_error=any(place in stack for place in waiting_in)
                or (world.rank not in missing and any(world.rank in one.waiting for one in found)),
            )
            for world, message in placed
        ]
        outcomes.sort(key=lambda outcome: outcome.world.rank not in missing)  # The cause is first.
        said = [answer.nccl for answer in stacks.values() if answer.nccl]
        nccl = "\n".join(["ncclras, of all ranks:", *said]) if said else ""
        worlds = [outcome.world for outcome in outcomes]
        if len(outcomes) < len(self.running()) or not all(
            outcome.is_communication_error for outcome in outcomes
        ):
            at = min(range(len(outcomes)), key=lambda at: outcomes[at].is_communication_error)
            told = "\n\n".join(filter(None, (nccl, outcomes[at].traceback)))
            outcomes[at] = replace(outcomes[at], traceback=told)
            return tuple(outcomes)
        message = all_waiting.sentence(worlds, stacks, placed[0][1])
        message = "\n\n".join(filter(None, (message, nccl)))
        apart = [] if missing else all_waiting.elsewhere(worlds, stacks)
        outcomes.sort(key=lambda outcome: outcome.world not in apart)
        return tuple(
            replace(outcome, status=Status.WAITING, message=message) for outcome in outcomes
        )


def _text(stacks: dict[int, Stacks], rank: int) -> str:
    answer = stacks.get(rank, Stacks("", []))
    return answer.text + stuck_collectives.place(answer)
