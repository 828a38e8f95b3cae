"""Gets an agent's rank: from the driver, or from the other agents if the driver is not reached."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.messages import Gather, Stop, Superfluous

# A driver that is reached gives up the start before its agents do: it knows which of them are
# missing, and an agent that raises makes Spark kill those that wait in its barrier.
DRIVER_FIRST_SECONDS = 5.0


class AwaitedAssignment:
    """Waits for an agent's assignment. What comes is put by other threads."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Assignment | Gather | Superfluous | Stop | BaseException]
        self._answers = queue.SimpleQueue()

    def answer(self, answer: Assignment | Gather | Superfluous | Stop) -> None:
        """Takes the driver's word, or ``Gather`` where the driver is not reached."""
        self._answers.put(answer)

    def wait(self, gather: Callable[[], Assignment], timeout_seconds: float) -> Assignment | None:
        """Waits for the assignment.

        Args:
            gather: Asks all other agents by Spark's barrier. It runs in a thread of its own, and is
                left behind there if the start is given up: Spark 3.5 ends the executor of a task
                that is killed in its barrier, and does no harm to one that has returned.
            timeout_seconds: How long it may take, and a little more.

        Returns:
            The assignment; None if the driver has given up the start.

        Raises:
            RunnerError: No answer came in time.
        """
        deadline = time.monotonic() + timeout_seconds + DRIVER_FIRST_SECONDS
        gathering: threading.Thread | None = None
        while True:
            left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            try:
                answer = self._answers.get(timeout=left)
            except queue.Empty:
                raise RunnerError(
                    f"Neither the driver nor all other ranks were reached within "
                    f"start_timeout_seconds={timeout_seconds:g}: open the driver's ports to its "
                    "executors (RunConfig.port_range says which), or raise that limit."
                ) from None
            match answer:
                case Assignment():
                    return answer
                case Stop():
                    return None
                case Superfluous():
                    # Spark would take this task's end for the rank's, and start the task again
                    # after a failure: so it waits until the rank ends.
                    deadline = math.inf
                case Gather():
                    if gathering is None:
                        gathering = threading.Thread(
                            target=self._gather, args=(gather,), name="sparkdl-gather", daemon=True
                        )
                        gathering.start()
                case _:
                    raise answer

    def _gather(self, gather: Callable[[], Assignment]) -> None:
        try:
            self._answers.put(gather())
        except BaseException as error:
            self._answers.put(error)
