"""Whether to end the training early: the same answer on all ranks at the same step.

A rank may know a reason that the others do not: its host will be taken away, the driver asks, its
own loop found that nothing gets better. About once a second, by rank 0's clock, ranks tell one
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_runner.checkpoint import peers as ranks
from sparkdl_runner.checkpoint.peers import Peers
from sparkdl_runner.rank import preemption, stop_request, world

_SECONDS = 1.0
_MOST_CALLS = 1000


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The decision that all ranks end, with its reason."""

    reason: str
    rank: int
    """The lowest rank that knew a reason."""
    is_preemption: bool
    """Whether a host is needed elsewhere, so that the training should go on on another."""
    leaving: tuple[int, ...] = ()
    """All ranks that knew that their hosts will be taken away."""

    def __str__(self) -> str:
        return self.reason


class StopAgreement:
    """The ranks' agreement on ending; all ranks call each of its methods.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at: float | None = None
        self._calls = 0
        self._calls_between = 1
        self._own = ""
        self.stop: Stop | None = None
        """The end, once all ranks know of it."""

    def ask(self, peers: Peers, own: str) -> Stop | None:
        """Whether to end: asks the other ranks in some of the calls, the same ones on all ranks."""
        self._own = self._own or own
        self._calls += 1
        if self.stop is not None or self._calls < self._calls_between:
            return self.stop
        # Rank 0 says how many calls later the next question comes.
        calls = self._calls_in_a_second() if peers.rank == 0 else 0
        known = [int(bool(self._own)), calls]
        has_reason, self._calls_between = peers.end_sum(peers.begin_sum(known))
        self._calls = 0
        if has_reason:
            self.learn(peers, self._own)
        return self.stop

    def learn(self, peers: Peers, own: str, *, is_preemption: bool | None = None) -> None:
        """Tells all ranks the reason of the lowest that has one: there is one at least."""
        if is_preemption is None:
            is_preemption = bool(stop_request.preemption_reason())
        reasons = peers.gather_text(
            f"{'!' if is_preemption else '.'}{own}" if own else "", stop_request.MOST_BYTES + 1
        )
        rank = next(rank for rank, text in enumerate(reasons) if text)
        self.stop = Stop(
            reason=reasons[rank][1:],
            rank=rank,
            is_preemption=reasons[rank][0] == "!",
            leaving=tuple(rank for rank, text in enumerate(reasons) if text.startswith("!")),
        )

    def _calls_in_a_second(self) -> int:
        now = self._clock()
        before, self._asked_at = self._asked_at, now
        if before is None:
            return 1
        seconds = max(now - before, 1e-9)
        return max(1, min(_MOST_CALLS, round(self._calls * _SECONDS / seconds)))


agreement = StopAgreement()
"""That of this process."""
_peers: Peers | None = None
_listens = False


def should_stop(reason: str = "") -> Stop | None:
    """Whether to end the training early; to be called by all ranks, as often on each.

    Ask it after each step, or each epoch. It is true on all ranks at the same call, within about
    two seconds of: SIGTERM on any rank, or another notice that its host will be taken away;
    ``RunConfig.time_limit_seconds``; ``request_stop`` of the runner on the driver; the tag
    ``sparkdl_runner.stop`` of the MLflow run; or a reason of a rank's own. The function then
    saves, and returns.

    Args:
        reason: Why this rank wants to end, if it does; up to 200 bytes.

    Returns:
        The reason, on all ranks the same; None to go on.

    Raises:
        CheckpointError: This is one of several ranks, and they cannot speak with each other yet.
    """
    global _peers, _listens
    if not _listens and world.in_worker():
        _listens = preemption.listen()
    if _peers is None or not _peers.is_there():
        _peers = ranks.connect()
    return agreement.ask(_peers, reason or stop_request.reason())


def stop_listening() -> None:
    """Takes one listener from SIGTERM, and forgets the agreement with the last."""
    preemption.stop_listening()
    forget_unless_listening()


def forget_unless_listening() -> None:
    """Resets the state for another training of this process, once none listens to SIGTERM."""
    global agreement
    if not preemption.is_listening():
        agreement = StopAgreement()
