"""Runs ranks as the tasks of one barrier-mode Spark stage."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.deadlines import GONE_SECONDS, is_silent, with_reason
from sparkdl_runner.launch.driver.diagnosis import explains_the_end
from sparkdl_runner.launch.driver.gang import Gang
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.spark import checks, failure
from sparkdl_runner.launch.driver.spark.context import (
    end_of,
    is_single_host,
    listen_on_driver,
    require_spark_context,
)
from sparkdl_runner.launch.driver.spark.decommissions import Decommissions, decommission
from sparkdl_runner.launch.driver.spark.executors import executors_of, silent_hosts
from sparkdl_runner.launch.driver.spark.gpu_scheduling import barrier_stage, rank_profile
from sparkdl_runner.launch.driver.spark.growth import Growth
from sparkdl_runner.launch.driver.spark.job import SparkAction, let_the_jvm_exit, tagged
from sparkdl_runner.launch.driver.spark.lent_function import lent
from sparkdl_runner.launch.driver.spark.lost_hosts import LostHosts
from sparkdl_runner.launch.driver.spark.sizes import most_result_bytes, refuse_too_large_function
from sparkdl_runner.launch.driver.spark.slots import SlotCheck, wait_for_slots
from sparkdl_runner.launch.driver.spark.spares import spare_task
from sparkdl_runner.launch.driver.spark.start_notices import StartNotices
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.driver.watch import Verdict
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import FLUSH_SECONDS
from sparkdl_runner.launch.wire.messages import RequestGrowth, RequestStop, Stacks
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.broadcast import Broadcast
    from pyspark.resource import ResourceProfile

# How long a cancelled job's tasks may take to end.
CANCEL_SECONDS = 10.0
# How long Spark may take to know that a task has returned.
RETURN_SECONDS = 1.0
# How long ranks that were told to stop may take beyond their grace.
STOP_SECONDS = 2.0


class SparkLauncher:
    """The ``Launcher`` of the running Spark application.

    Args:
        num_proc: How many ranks; 0 for as many as there are slots at the first attempt.
        backend: What they use.
        config: Says how long to wait for slots, with how few ranks it may go on, and what of the
            session is accepted.

    Raises:
        LaunchError: There is no session, or it is refused: see ``checks``.
    """

    def __init__(self, num_proc: int, backend: Backend, config: RunConfig) -> None:
        self._context = require_spark_context()
        checks.check(self._context, backend, config)
        self._profile = rank_profile(self._context)
        self._num_proc = num_proc
        self._lost = LostHosts(self._context)
        self._leaving: set[str] = set()
        self._growth = Growth(self._context, self._profile)
        self.is_single_host = is_single_host(self._context)
        self.application_id = self._context.applicationId

    def run(
        self, attempt: AttemptSpec, reports: Sequence[Reports], stop: StopRequest
    ) -> list[Outcome]:
        """See ``Launcher.run``."""
        refuse_too_large_function(self._context, attempt.function)
        asked_seconds = self._lost.replace_executors()
        decommission(self._context, self._leaving, "its host will be taken away")
        needed = self._growth.take_target() or self._num_proc
        config, least = attempt.config, attempt.config.min_num_proc
        while True:
            num_proc = wait_for_slots(
                self._context,
                needed,
                config,
                profile=self._profile,
                least=least,
                asked_seconds=asked_seconds,
                stop=stop,
            )
            self._num_proc = self._num_proc or num_proc
            gang = SparkGang(self._context, self._profile, attempt, num_proc, reports)
            watched = self._growth.watched(num_proc, self._num_proc, gang.request_growth)
            with stop.told_to(gang.request_stop, gang.interrupt), watched:
                try:
                    return gang.run()
                except RunnerError:
                    # No rank has begun, and fewer may do.
                    if not gang.slot_check.has_failed or least is None:
                        raise
                finally:
                    for one in () if self.is_single_host else filter(is_silent, gang.failures):
                        self._lost.add(one.world, gang.addresses_of(one.world))
                    self._lost.add_executors(gang.unheard_executors())
                    self._leaving |= gang.leaving_executors()


class SparkGang(Gang):
    """Ranks as barrier tasks, whose agents report over the log channel.

    Args:
        context: The application's context, which has the slots.
        profile: What each rank's task asks Spark for; None for what all tasks get.
        attempt: See ``Gang``, as for the rest.
    """

    def __init__(
        self,
        context: SparkContext,
        profile: ResourceProfile | None,
        attempt: AttemptSpec,
        num_proc: int,
        reports: Sequence[Reports],
    ) -> None:
        config = attempt.config
        shown = config.driver_log_verbosity == "all"
        super().__init__(attempt, num_proc, reports, show_output=shown)
        self._context = context
        self._profile = profile
        self._is_single_host = is_single_host(context)
        self.slot_check = SlotCheck(context, profile, num_proc)
        listener, host = listen_on_driver(
            context, port_range=config.port_range, interface=config.network_interface
        )
        self._server = LogServer(
            listener, host=host, num_proc=num_proc, receiver=self, attempt=attempt
        )
        self._server.watch = self.watch
        self._launch_problem = ""
        self._is_interrupted = False

    def run(self) -> list[Outcome]:
        """See ``Launcher.run``."""
        if self._is_single_host:
            let_the_jvm_exit(self._context)
        with ExitStack() as stack:
            stack.callback(self._server.close)
            stack.callback(self.close)
            self._tag = stack.enter_context(tagged(self._context, self.num_proc, self.backend.name))
            tasks = barrier_stage(self._context, self.num_proc, self._profile)
            function = stack.enter_context(lent(self._context, self.attempt.function))
            ends = tasks.mapPartitions(self._rank_task(function))
            self._server.start()
            self._job = SparkAction(lambda: list(ends.collect()))
            decommissions = Decommissions(self._context, self._tag, self._server.preempt)
            notices = StartNotices(self._context, self._tag, self.watch, self._server.channel)
            stack.callback(decommissions.close)
            stack.callback(notices.close)
            if self._is_interrupted:
                self._job.interrupt()
            self.watch.start()
            try:
                outcomes = self._job.result()
                self._raise_launch_problem()
                self._server.flush()  # Reports may still be on their way.
                return self.ends(outcomes)
            except BaseException as error:
                # Spark may leave the other tasks a few seconds; their workers get none.
                self.stop()
                if not self.watch.running():
                    self._server.flush(FLUSH_SECONDS)  # They may be in Spark's barrier.
                self._cancel_job()
                self._job.wait(CANCEL_SECONDS)
                if self._is_interrupted or not isinstance(error, Exception):
                    raise
                return self._ends_after(error)
            finally:
                # A lost rank cannot report why it stopped, so do not wait for it.
                is_complete = all(one.status != Status.LOST for one in self.failures)
                self._server.flush(FLUSH_SECONDS if is_complete else 0.5)

    def interrupt(self) -> None:
        """See ``Gang.interrupt``; ``run`` then also cancels a job that waits for slots."""
        self._is_interrupted = True
        if hasattr(self, "_job"):
            self._job.interrupt()

    def end_ranks(self) -> None:
        """See ``Gang.end_ranks``."""
        self._server.stop_ranks()

    def request_stop(self, reason: str) -> None:
        """See ``Gang.request_stop``."""
        self._server.request(RequestStop(reason))

    def request_growth(self, reason: str) -> None:
        """Asks all ranks to end with their next checkpoint, since there can be more."""
        self._server.request(RequestGrowth(reason))

    def ask_stacks(self) -> dict[int, Stacks]:
        """See ``Gang.ask_stacks``."""
        return self._server.ask_stacks()

    def addresses_of(self, world: World) -> tuple[str, ...]:
        """All addresses of a rank's host."""
        return self._server.addresses_of(world)

    def leaving_executors(self) -> set[str]:
        """The executors of ranks whose hosts will be taken away, as they said at their end."""
        leaving = {rank for one in self.failures for rank in one.preempted_ranks}
        return self._executors_with(self.watch.partitions_of(leaving))

    def unheard_executors(self) -> set[str]:
        """The executors of tasks that Spark has started, and whose agents have never come."""
        return self._executors_with(self.watch.unheard())

    def _executors_with(self, partitions: Set[int]) -> set[str]:
        if self._is_single_host or not partitions:
            return set()
        executors = executors_of(self._context, self._tag)
        return {name for name, tasks in executors.items() if tasks & partitions}

    def lost_slots(self) -> str | None:
        """See ``Gang.lost_slots``."""
        return None if self._is_single_host else self.slot_check.shortage()

    def act_on(self, verdict: Verdict) -> None:
        """Ends the ranks; where Spark does not know yet that one is lost, its job as well."""
        self._launch_problem = verdict.launch_problem
        if self._launch_problem:
            self._launch_problem += silent_hosts(self._context, self._tag, self.watch.unheard())
        super().act_on(verdict)
        lost = {one.world.rank for one in verdict.failures if one.status == Status.LOST}
        if verdict.launch_problem:
            # Agents that we reach return: Spark 3.5 ends the executor of a task that is killed in
            # its barrier.
            self._server.flush(FLUSH_SECONDS)
            self._job.wait(RETURN_SECONDS)
        deadline = time.monotonic() + self.attempt.config.shutdown_grace_seconds + STOP_SECONDS
        while not self._job.wait(0.1):
            others_ended = bool(lost) and self.watch.running() <= lost
            if time.monotonic() > deadline or others_ended or verdict.launch_problem:
                self._cancel_job()
                break

    def _rank_task(self, function: Broadcast[bytes] | None) -> RankTask:
        attempt = self.attempt
        if function is not None:
            attempt = replace(attempt, function=b"")
        spare = spare_task(
            self._context, self._profile, attempt.backend, attempt.variables, attempt.spare_seconds
        )
        return RankTask(
            attempt=attempt,
            large_function=function,
            channel=self._server.channel,
            single_host=self._is_single_host,
            most_result_bytes=most_result_bytes(self._context),
            sends_value=not checks.encryption_asked_for(self._context),  # The channel is in clear.
            spare=spare,
        )

    def _cancel_job(self) -> None:
        with suppress(Exception):  # If the JVM is gone, so is the job.
            self._context.cancelJobsWithTag(self._tag)

    def _ends_after(self, error: Exception) -> list[Outcome]:
        """The failures that explain why Spark ended the stage.

        Returns:
            Them; or the ends of all ranks, where all had returned before one was lost.

        Raises:
            RunnerError: No rank said why.
        """
        self._raise_launch_problem()
        failures = self.failures
        loss = failure.executor_loss(error, self._context)
        application_end = end_of(self._context)
        if application_end:  # Its tasks are lost because of it.
            failures = [one for one in failures if one.status != Status.LOST]
        elif (loss or failures) and all(one.status == Status.LOST for one in failures):
            told = loss or f"rank {failures[0].world.rank} {failures[0].message.rstrip('.')}"
            if ends := self._values.outcomes(self.num_proc, told):
                return ends
        if loss:
            failures = [with_reason(one, loss) for one in self._failures_and_missing(error)]
        if explains_the_end(failures):
            return failures
        raise failure.explain(
            error,
            python=self._context.pythonExec,
            failures=failures,
            application_end=application_end,
            host=failure.host_of_task(self._context, error),
            function_bytes=len(self.attempt.function),
        ) from None

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
        missing.sort(key=lambda one: not lost & self.watch.partitions_of({one.world.rank}))
        known = {one.world.rank for one in self.failures}
        return [*self.failures, *(one for one in missing if one.world.rank not in known)]
