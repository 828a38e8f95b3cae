"""The ranks of one stage, whose agents report over the log channel."""

from __future__ import annotations

import socket
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.driver.deadlines import GONE_SECONDS, with_reason
from sparkdl_runner.launch.driver.diagnosis import explains_the_end
from sparkdl_runner.launch.driver.gang import Gang
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.spark import failure, java
from sparkdl_runner.launch.driver.spark.job import SparkAction
from sparkdl_runner.launch.driver.watch import Verdict
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import FLUSH_SECONDS
from sparkdl_runner.launch.wire.messages import RequestStop, Stacks
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.reports import Reports

# How long a cancelled job's tasks may take to end.
CANCEL_SECONDS = 10.0
# How long Spark may take to know that a task has returned.
RETURN_SECONDS = 1.0
# How long ranks that were told to stop may take beyond their grace.
STOP_SECONDS = 2.0


class StageGang(Gang):
    """Ranks as tasks; each kind of session has its own way to submit and end the stage.

    Args:
        attempt: See ``Gang``, as for the others.
        num_proc: The same.
        reports: The same.
        listener: A listening socket for the channel to the agents.
        host: The name or address under which executors reach it.
        is_barrier: Whether Spark starts all tasks at once.
        ranks_per_task: How many ranks each task has.
    """

    def __init__(
        self,
        attempt: AttemptSpec,
        num_proc: int,
        reports: Sequence[Reports],
        *,
        listener: socket.socket,
        host: str,
        is_barrier: bool,
        ranks_per_task: int,
    ) -> None:
        shown = attempt.config.driver_log_verbosity == "all"
        super().__init__(attempt, num_proc, reports, show_output=shown)
        self.server = LogServer(
            listener,
            host=host,
            num_proc=num_proc,
            receiver=self,
            attempt=attempt,
            is_barrier=is_barrier,
            ranks_per_task=ranks_per_task,
        )
        self.is_barrier = is_barrier
        self.ranks_per_task = ranks_per_task
        self.num_tasks = num_proc // ranks_per_task
        self.server.watch = self.watch
        self._launch_problem = ""
        self._is_interrupted = False

    @abstractmethod
    def submit(self, stack: ExitStack) -> SparkAction[list[Outcome]]:
        """Starts the stage. What it needs until the stage has ended is left on the stack."""

    @abstractmethod
    def cancel_job(self) -> None:
        """Has Spark end the stage's tasks; raises nothing."""

    @abstractmethod
    def application_end(self) -> str:
        """How the application or the session has ended, to follow a colon; empty if it runs."""

    @abstractmethod
    def executor_loss(self, error: Exception) -> str:
        """See ``failure.executor_loss``."""

    @abstractmethod
    def explained(
        self, error: Exception, failures: Sequence[Outcome], application_end: str
    ) -> RunnerError:
        """See ``failure.explain``."""

    def cause(self, error: Exception) -> Exception:
        """The error that came first. ``error``, which Spark has raised, may follow from it."""
        return error

    def tasks_of(self, partitions: Iterable[int]) -> set[int]:
        """The numbers of the Spark tasks of some agents."""
        return {partition // self.ranks_per_task for partition in partitions}

    def silent_hosts(self) -> str:
        """A sentence on hosts whose agents have never come; empty if there is nothing to say."""
        return ""

    def run(self) -> list[Outcome]:
        """See ``Launcher.run``."""
        with ExitStack() as stack:
            stack.callback(self.server.close)
            stack.callback(self.close)
            self.server.start()
            self._job = self.submit(stack)
            if self._is_interrupted:
                self._job.interrupt()
            self.watch.start()
            try:
                outcomes = self._job.result()
                self._raise_launch_problem()
                self.server.flush()  # Reports may still be on their way.
                if not self.is_barrier and len(outcomes) < self.num_proc:
                    # Spark had started its task again, which then was told to end.
                    for lost in self.watch.missing():
                        self.failed(lost)
                    return self._ends_after(RunnerError("The task of a rank was lost."))
                return self.ends(outcomes)
            except BaseException as error:
                # Spark may leave the other tasks a few seconds; their workers get none.
                self.stop()
                if not self.watch.running():
                    self.server.flush(FLUSH_SECONDS)  # They may be in Spark's barrier.
                self.cancel_job()
                self._job.wait(CANCEL_SECONDS)
                if self._is_interrupted or not isinstance(error, Exception):
                    raise
                return self._ends_after(error)
            finally:
                # A lost rank cannot report why it stopped, so do not wait for it.
                is_complete = all(outcome.status != Status.LOST for outcome in self.failures)
                self.server.flush(FLUSH_SECONDS if is_complete else 0.5)

    def interrupt(self) -> None:
        """See ``Gang.interrupt``; ``run`` then also cancels a job that waits for slots."""
        self._is_interrupted = True
        if hasattr(self, "_job"):
            self._job.interrupt()

    def end_ranks(self) -> None:
        """See ``Gang.end_ranks``."""
        self.server.stop_ranks(will_restart=self.will_restart)

    def request_stop(self, reason: str) -> None:
        """See ``Gang.request_stop``."""
        self.server.request(RequestStop(reason))

    def ask_stacks(self) -> dict[int, Stacks]:
        """See ``Gang.ask_stacks``."""
        return self.server.ask_stacks()

    def act_on(self, verdict: Verdict) -> None:
        """Ends the ranks; where Spark does not know yet that one is lost, its job as well."""
        self._launch_problem = verdict.launch_problem
        if self._launch_problem:
            self._launch_problem += self.silent_hosts()
        super().act_on(verdict)
        lost = {outcome.world.rank for outcome in verdict.failures if outcome.status == Status.LOST}
        if verdict.launch_problem:
            # Agents that we reach return: Spark 3.5 ends the executor of a task that is killed in
            # its barrier.
            self.server.flush(FLUSH_SECONDS)
            self._job.wait(RETURN_SECONDS)
        deadline = time.monotonic() + self.attempt.config.shutdown_grace_seconds + STOP_SECONDS
        while not self._job.wait(0.1):
            others_ended = bool(lost) and self.watch.running() <= lost
            if time.monotonic() > deadline or others_ended or verdict.launch_problem:
                self.cancel_job()
                break

    def _ends_after(self, error: Exception) -> list[Outcome]:
        """The failures that explain why Spark ended the stage.

        Returns:
            Them; or the ends of all ranks, where all had returned before one was lost.

        Raises:
            RunnerError: No rank said why.
        """
        self._raise_launch_problem()
        failures, error = self.failures, self.cause(error)
        loss = self.executor_loss(error)
        application_end = self.application_end()
        has_raised = not self.is_barrier and java.raised_in_task(java.text_of(error)) is not None
        if application_end or has_raised:  # Its tasks are lost because of it.
            failures = [outcome for outcome in failures if outcome.status != Status.LOST]
        elif (loss or failures) and all(outcome.status == Status.LOST for outcome in failures):
            reason = loss or f"rank {failures[0].world.rank} {failures[0].message.rstrip('.')}"
            if ends := self._values.outcomes(self.num_proc, reason):
                return ends
        if loss:
            failures = [with_reason(outcome, loss) for outcome in self._failures_and_missing(error)]
        if explains_the_end(failures):
            return failures
        raise self.explained(error, failures, application_end) from None

    def _raise_launch_problem(self) -> None:
        if self._launch_problem:
            # In a restart, a host that is lost now may be back for the next attempt.
            kind = RunnerError if self.attempt.is_restart else LaunchError
            raise kind(self._launch_problem) from None

    def _failures_and_missing(self, error: Exception) -> list[Outcome]:
        """The failures, with the ranks whose loss Spark may know of before we do."""
        deadline = time.monotonic() + GONE_SECONDS
        while not (missing := self.watch.missing()) and time.monotonic() < deadline:
            time.sleep(0.05)
        lost = {failure.failed_partition(error)}  # Spark then ends the other tasks.
        missing.sort(
            key=lambda one: not lost & self.tasks_of(self.watch.partitions_of({one.world.rank}))
        )
        known = {outcome.world.rank for outcome in self.failures}
        return [
            *self.failures,
            *(outcome for outcome in missing if outcome.world.rank not in known),
        ]
