"""When to save: the same answer on all ranks at every step, without making the step wait.

Each rank adds what it alone knows: that its host will be taken away, and on rank 0 that the time
has come. The sum is begun at one step and read at the next, when it is long done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.checkpoint import stopping
from sparkdl_runner.checkpoint.peers import Peers
from sparkdl_runner.checkpoint.stopping import Stop, StopAgreement


class Schedule:
    """Answers ``due``.

    Args:
        every_steps: Save each time that so many steps are done.
        every_seconds: Save each time that so much time has passed on rank 0's clock.
        preemption: Why this rank's host will be taken away; empty if it will not.
        clock: Seconds.
        agreement: What the ranks have agreed on; that of this process by default.
    """

    def __init__(
        self,
        every_steps: int | None,
        every_seconds: float | None,
        preemption: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        agreement: StopAgreement | None = None,
    ) -> None:
        if every_steps is not None:
            require_whole("every_steps", every_steps, least=1)
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"every_seconds is {every_seconds!r}; expected more than 0.")
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._preemption = preemption
        self._clock = clock
        self._since = clock()
        self._last_step: int | None = None
        self._agreement = agreement or stopping.agreement
        self._pending: tuple[Peers, Any] | None = None

    @property
    def preempted(self) -> Stop | None:
        """The rank whose host will be taken away, and the reason; None until all ranks know."""
        stop = self._agreement.stop
        return stop if stop is not None and stop.is_preemption else None

    def note(self, step: int) -> None:
        """There is a checkpoint of this step: counting begins anew."""
        self._last_step = step
        self._since = self._clock()

    def due(self, step: int, peers: Peers) -> bool:
        """Whether to save after ``step``. To be asked by all ranks after every step."""
        known = self._mine(peers) if peers.size == 1 else self._end_sum()
        asked, by_clock = known or (0, 0)
        if asked and self.preempted is None:
            self._agreement.learn(peers, self._preemption(), is_preemption=True)
        due = self._by_steps(step) or bool(by_clock) or self.preempted is not None
        if due:
            self.note(step)
        if peers.size > 1:
            # After the clock was set back, or this time would count twice.
            self._pending = peers, peers.begin_sum(self._mine(peers))
        return due

    def abandon(self) -> None:
        """Leaves the last sum alone: a rank that has failed will not give its share."""
        self._pending = None

    def close(self) -> None:
        """Waits for the other ranks' share of the last sum, so that nothing is left under way."""
        with suppress(Exception):  # The ranks may have parted before.
            self._end_sum()

    def _end_sum(self) -> list[int]:
        if self._pending is None:
            return []
        (peers, pending), self._pending = self._pending, None
        return peers.end_sum(pending)

    def _by_steps(self, step: int) -> bool:
        if self._last_step is None:
            self._last_step = step - 1
        every = self._every_steps
        return every is not None and step // every > self._last_step // every

    def _mine(self, peers: Peers) -> list[int]:
        """Whether this rank's host goes, and whether rank 0's clock says that it is time."""
        by_clock = False
        if self._every_seconds is not None and peers.rank == 0:
            by_clock = self._clock() - self._since >= self._every_seconds
        return [int(bool(self._preemption())), int(by_clock)]
