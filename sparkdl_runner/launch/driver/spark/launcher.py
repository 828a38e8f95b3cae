"""Runs ranks as the tasks of one Spark stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.deadlines import is_silent
from sparkdl_runner.launch.driver.spark import checks, failure
from sparkdl_runner.launch.driver.spark.allocation import chosen_gang, is_dynamic
from sparkdl_runner.launch.driver.spark.assembly import Assembly, Tries
from sparkdl_runner.launch.driver.spark.context import (
    end_of,
    is_single_host,
    listen_on_driver,
    require_spark_context,
    settings_of,
)
from sparkdl_runner.launch.driver.spark.decommissions import Decommissions, decommission
from sparkdl_runner.launch.driver.spark.executors import executors_of, list_executors, silent_hosts
from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_stage
from sparkdl_runner.launch.driver.spark.growth import Growth
from sparkdl_runner.launch.driver.spark.job import SparkAction, let_the_jvm_exit, tagged
from sparkdl_runner.launch.driver.spark.lent_function import lent
from sparkdl_runner.launch.driver.spark.lost_hosts import LostHosts
from sparkdl_runner.launch.driver.spark.sizes import most_result_bytes, refuse_too_large_function
from sparkdl_runner.launch.driver.spark.slots import SlotCheck, count_places, wait_for_slots
from sparkdl_runner.launch.driver.spark.spares import spare_task
from sparkdl_runner.launch.driver.spark.stage_gang import StageGang
from sparkdl_runner.launch.driver.spark.start_notices import StartNotices
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape, task_shape
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import RequestGrowth
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.broadcast import Broadcast


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
        self._shape = task_shape(self._context, config, num_proc)
        self._is_barrier = chosen_gang(
            settings_of(self._context).get, config, num_proc, ranks_per_task=self._shape.ranks
        )
        # Executors come for tasks that wait, and for nothing else.
        self._is_dynamic = not self._is_barrier and is_dynamic(settings_of(self._context).get)
        self._num_proc, self._config = num_proc, config
        self._lost = LostHosts(self._context)
        self._leaving: set[str] = set()
        self._gang: SparkGang | None = None
        self._growth = Growth(self._context, self._shape)
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
        tries = Tries(config, settings_of(self._context).get, stop)
        while True:
            num_proc = needed
            if not self._is_dynamic:
                num_proc = wait_for_slots(
                    self._context,
                    needed,
                    config,
                    shape=self._shape,
                    least=least,
                    asked_seconds=asked_seconds,
                    stop=stop,
                )
            self._num_proc = self._num_proc or num_proc
            gang = SparkGang(
                self._context,
                self._shape,
                attempt,
                num_proc,
                reports,
                is_barrier=self._is_barrier,
            )
            watched = self._growth.watched(num_proc, self._num_proc, gang.request_growth)
            self._gang = gang
            with stop.told_to(gang.request_stop, gang.interrupt), watched:
                try:
                    return gang.run()
                except RunnerError:
                    if (there := gang.assembly.given_back) is not None:
                        has_slots = count_places(self._context, self._shape) >= num_proc
                        needed = tries.next_size(there, needed, has_slots)
                    # No rank has begun, and fewer may do.
                    elif not gang.slot_check.has_failed or least is None:
                        raise
                finally:
                    for outcome in () if self.is_single_host else filter(is_silent, gang.failures):
                        self._lost.add(outcome.world, gang.addresses_of(outcome.world))
                    self._lost.add_executors(gang.unheard_executors())
                    self._leaving |= gang.leaving_executors()

    def keep_out(self, ranks: Collection[int]) -> str:
        """See ``Launcher.keep_out``."""
        bad = self._gang.executors_of_ranks(ranks) if self._gang is not None else set()
        left = len(listed := list_executors(self._context)) - len(bad)
        has_others = self._is_dynamic or (self._context.master or "").startswith(("yarn", "k8s://"))
        places = count_places(self._context, self._shape) * left // max(1, len(listed))
        needed = self._config.min_num_proc or self._num_proc
        if not bad or (places < needed and not has_others):
            return f"{needed} ranks are needed, and other executors have slots for {places}"
        if not has_others:  # Else a standalone master starts an executor in the same place.
            jvm: Any = self._context._jvm
            none = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
            self._context._jsc.sc().requestTotalExecutors(left, 0, none)
            self._num_proc = min(self._num_proc, places)  # Nobody waits for slots that cannot come.
        decommission(self._context, bad, "preflight found it slow or faulty")
        return ""


class SparkGang(StageGang):
    """Ranks as tasks of the application whose driver this process is.

    Args:
        context: The application's context, which has the slots.
        shape: That of the ranks' tasks.
        attempt: See ``Gang``, as for the next two.
        is_barrier: Whether Spark starts all tasks at once.
    """

    def __init__(
        self,
        context: SparkContext,
        shape: TaskShape,
        attempt: AttemptSpec,
        num_proc: int,
        reports: Sequence[Reports],
        *,
        is_barrier: bool = True,
    ) -> None:
        self._context = context
        self._shape = shape
        self._is_single_host = is_single_host(context)
        self.slot_check = SlotCheck(context, shape, num_proc)
        config = attempt.config
        self.assembly = Assembly(
            config,
            num_proc,
            slots=lambda: count_places(context, shape),
            all_started=self._all_started,
        )
        listener, host = listen_on_driver(
            context, port_range=config.port_range, interface=config.network_interface
        )
        super().__init__(
            attempt,
            num_proc,
            reports,
            listener=listener,
            host=host,
            is_barrier=is_barrier,
            ranks_per_task=shape.ranks,
        )

    def submit(self, stack: ExitStack) -> SparkAction[list[Outcome]]:
        """See ``StageGang.submit``."""
        if self._is_single_host:
            let_the_jvm_exit(self._context)
        self._tag = stack.enter_context(tagged(self._context, self.num_proc, self.backend.name))
        tasks = rank_stage(
            self._context, self.num_tasks, self._shape.profile, is_barrier=self.is_barrier
        )
        function = stack.enter_context(lent(self._context, self.attempt.function))
        ends = tasks.mapPartitions(self._rank_task(function))
        job = SparkAction(lambda: list(ends.collect()))
        decommissions = Decommissions(self._context, self._tag, self._preempt)
        stack.callback(decommissions.close)
        if self.is_barrier:  # What Spark does not start at once, the assembly tells of.
            notices = StartNotices(
                self._context, self._tag, self.watch, self.server.channel, self.tasks_of
            )
            stack.callback(notices.close)
        return job

    def cancel_job(self) -> None:
        """See ``StageGang.cancel_job``."""
        with suppress(Exception):  # If the JVM is gone, so is the job.
            self._context.cancelJobsWithTag(self._tag)

    def application_end(self) -> str:
        """See ``StageGang.application_end``."""
        return end_of(self._context)

    def executor_loss(self, error: Exception) -> str:
        """See ``StageGang.executor_loss``."""
        return failure.executor_loss(error, self._context)

    def cause(self, error: Exception) -> Exception:
        """See ``StageGang.cause``: Spark goes on after a task's failure, and tells of the last."""
        first = "" if self.is_barrier else failure.first_task_failure(self._context, self._tag)
        return RunnerError(first) if first else error

    def explained(
        self, error: Exception, failures: Sequence[Outcome], application_end: str
    ) -> RunnerError:
        """See ``StageGang.explained``."""
        return failure.explain(
            error,
            python=self._context.pythonExec,
            failures=failures,
            application_end=application_end,
            host=failure.host_of_task(self._context, error),
            function_bytes=len(self.attempt.function),
        )

    def silent_hosts(self) -> str:
        """See ``StageGang.silent_hosts``."""
        return silent_hosts(self._context, self._tag, self.tasks_of(self.watch.unheard()))

    def request_growth(self, reason: str) -> None:
        """Asks all ranks to end with their next checkpoint, since there can be more."""
        self.server.request(RequestGrowth(reason))

    def addresses_of(self, world: World) -> tuple[str, ...]:
        """All addresses of a rank's host."""
        return self.server.addresses_of(world)

    def leaving_executors(self) -> set[str]:
        """The executors of ranks whose hosts will be taken away, as they said at their end."""
        leaving = {rank for outcome in self.failures for rank in outcome.preempted_ranks}
        return self.executors_of_ranks(leaving)

    def executors_of_ranks(self, ranks: Collection[int]) -> set[str]:
        """The executors on which some ranks run, or ran."""
        return self._executors_with(self.watch.partitions_of(ranks))

    def unheard_executors(self) -> set[str]:
        """The executors of tasks that Spark has started, and whose agents have never come."""
        return self._executors_with(self.watch.unheard())

    def _executors_with(self, partitions: Set[int]) -> set[str]:
        if self._is_single_host or not partitions:
            return set()
        executors, own = executors_of(self._context, self._tag), self.tasks_of(partitions)
        return {name for name, tasks in executors.items() if tasks & own}

    def _preempt(self, tasks: Collection[int], reason: str) -> None:
        each = self.ranks_per_task
        agents = [task * each + turn for task in tasks for turn in range(each)]
        self.server.preempt(agents, reason)

    def lost_slots(self, there: int, seconds: float) -> str | None:
        """See ``Gang.lost_slots``."""
        if not self.is_barrier:
            return self.assembly.shortage(there, seconds)
        return None if self._is_single_host or there else self.slot_check.shortage()

    def _all_started(self) -> bool:
        executors = executors_of(self._context, self._tag)
        return len(set[int]().union(*executors.values())) == self.num_tasks

    def _rank_task(self, function: Broadcast[bytes] | None) -> RankTask:
        attempt = self.attempt
        if function is not None:
            attempt = replace(attempt, function=b"")
        spare = spare_task(
            self._context, self._shape, attempt.backend, attempt.variables, attempt.spare_seconds
        )
        return RankTask(
            attempt=attempt,
            large_function=function,
            channel=self.server.channel,
            is_barrier=self.is_barrier,
            single_host=self._is_single_host,
            most_result_bytes=most_result_bytes(self._context),
            # The channel is in clear.
            sends_value=not checks.encryption_asked_for(settings_of(self._context).get),
            spare=spare,
        )
