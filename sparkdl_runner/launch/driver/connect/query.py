"""A query of a Spark Connect session: cancelled by its tag, and given up if its server is gone."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.driver.connect.session import answers, no_answer, setting
from sparkdl_runner.launch.driver.spark.job import SparkAction

T = TypeVar("T")

LOOK_SECONDS = 2.0
# So many looks in a row must find no server.
LOOKS = 3
# A stage that has just begun has no tasks either: said at this look, then every half minute.
SAY_LOOKS = 3
SAY_AGAIN_LOOKS = 15
_REPORT_INTERVAL = "spark.connect.progress.reportInterval"


class ServerQuery(SparkAction[T]):
    """An action in a thread of its own, with its server watched meanwhile.

    Where a server does not answer, pyspark asks again for ten minutes: so the action is given up,
    and its thread left alone.

    Args:
        session: The Spark Connect session.
        action: Returns its result.
        slots: How many tasks it needs at once.
        start_seconds: How long the server may take to start a stage. Where slots are too few, it
            starts none for ten minutes, and says nothing.
        has_begun: Whether its tasks were heard.
    """

    def __init__(
        self,
        session: Any,
        action: Callable[[], T],
        *,
        slots: int,
        start_seconds: float = math.inf,
        has_begun: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._slots = slots
        self._start_seconds = start_seconds
        self._tag = f"sparkdl-runner-{uuid.uuid4().hex}"
        self._has_begun = has_begun
        self._has_stage = self._has_tasks = False
        self._tells_progress = False
        self._closed = threading.Event()
        self.server_is_lost = False
        """Whether it was given up since its server is gone."""

        def tagged() -> T:
            session.addTag(self._tag)
            if hasattr(session, "registerProgressHandler"):  # Not Spark 3.5's.
                session.registerProgressHandler(self._on_progress)
                # Where the interval is set, reports may be rare, or off.
                self._tells_progress = setting(session, _REPORT_INTERVAL) is None
            return action()

        super().__init__(tagged, thread=threading.Thread)
        threading.Thread(target=self._look, name="sparkdl-server-watch", daemon=True).start()

    def wait(self, timeout_seconds: float) -> bool:
        """See ``SparkAction.wait``. A thread that asks a lost server is not waited for."""
        return self.server_is_lost or super().wait(timeout_seconds)

    def cancel(self) -> None:
        """Has the server end it; raises nothing, and waits for no answer."""

        def interrupt() -> None:
            with suppress(Exception):  # If the server is gone, so is the query.
                self._session.interruptTag(self._tag)

        threading.Thread(target=interrupt, name="sparkdl-interrupt", daemon=True).start()

    def close(self) -> None:
        """Stops looking after it."""
        self._closed.set()
        with suppress(Exception):  # The session was stopped.
            self._session.removeProgressHandler(self._on_progress)

    def _on_progress(self, *, stages: Any, inflight_tasks: int, **_: Any) -> None:
        """Notes how far it is. pyspark calls this for each query of the session, in its thread."""
        if threading.current_thread() is self._thread:
            self._has_stage |= bool(stages)
            self._has_tasks |= inflight_tasks > 0

    def _look(self) -> None:
        missed, waited, began = 0, 0, time.monotonic()
        while not self._closed.wait(LOOK_SECONDS):
            missed = 0 if answers(self._session) else missed + 1
            if missed == LOOKS:
                self.server_is_lost = True
                self.give_up(RunnerError(no_answer(self._session)))
                return
            if self._has_begun():
                continue
            if self._has_stage:
                waited += not self._has_tasks
                if not self._has_tasks and waited % SAY_AGAIN_LOOKS == SAY_LOOKS:
                    several = f"{self._slots} slots are free at once"
                    free = several if self._slots > 1 else "a slot is free"
                    tell(f"waiting until {free}. Other queries of this server use them.")
            elif self._tells_progress and time.monotonic() > began + self._start_seconds:
                self.give_up(
                    LaunchError(
                        f"{self._slots} ranks need {self._slots} task slots at once, and in "
                        f"{self._start_seconds:g} s the server has started no task: it seems to "
                        "have fewer. Ask for fewer ranks, add executors or cores where the server "
                        "is started, or wait for longer by RunConfig(slot_wait_seconds=…)."
                    )
                )
                self.cancel()
                return
