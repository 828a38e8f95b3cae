"""Runs a gang as the tasks of one barrier-mode Spark stage."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from sparkdl_runner.agent.rank_task import RankTask
from sparkdl_runner.agent.worker_environment import driver_search_path, driver_variables
from sparkdl_runner.backends import get_backend
from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver import slots, spark_failure, spark_job
from sparkdl_runner.driver.console import Console
from sparkdl_runner.driver.gang import Gang
from sparkdl_runner.driver.log_server import LogServer
from sparkdl_runner.driver.spark_context import end_of, is_single_host
from sparkdl_runner.driver.watch import GONE_SECONDS, Verdict, Watch
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.wire import network
from sparkdl_runner.wire.channel import FLUSH_SECONDS
from sparkdl_runner.wire.outcome import LOST, Outcome, explains_the_end, with_failures

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile

# How long a cancelled job's tasks may take to end.
CANCEL_SECONDS = 10.0
# How long ranks that were told to stop may take beyond their grace.
STOP_SECONDS = 2.0
SLOT_CHECK_SECONDS = 5.0


def launch(
    context: SparkContext,
    *,
    num_proc: int,
    backend: str,
    function: bytes,
    config: RunConfig,
    run: str,
    attempt: int = 0,
    is_restart: bool = False,
    ticket: RunTicket | None = None,
    reports: Sequence[Reports] = (),
    profile: ResourceProfile | None = None,
) -> list[Outcome]:
    """Runs the function as ``num_proc`` ranks and waits for all of them to end.

    Args:
        context: The application's context.
        num_proc: The number of ranks; the slots are there.
        backend: The backend's name.
        function: Made by ``function.pack``.
        config: The run's settings.
        run: The run's own name.
        attempt: Which submission of the gang this is.
        is_restart: Whether an earlier one of this run was lost, and what it lacks may come again.
        ticket: The MLflow run that the training goes into.
        reports: Who takes what ranks tell of their training.
        profile: What each rank's task asks Spark for; None for what all tasks get.

    Returns:
        How each rank ended, for as many as could tell.

    Raises:
        RunnerError: Spark ended the stage, and no rank said why.
    """
    console = Console(show_output=config.driver_log_verbosity == "all", reports=reports)
    listener, host = _listen_on_driver(context)
    server = LogServer(listener, host=host, num_proc=num_proc, sink=console)
    console.gang = Gang(server.stop_ranks)
    if is_single_host(context):
        spark_job.let_the_jvm_exit(context)
    task = RankTask(
        backend=backend,
        attempt=attempt,
        function=function,
        search_path=tuple(driver_search_path()),
        variables=driver_variables(config.environment),
        channel=server.channel,
        config=config,
        run=run,
        ticket=ticket,
        single_host=is_single_host(context),
        # Spark goes by spark.task.cpus, and a profile's tasks may have more.
        spark_set_threads=profile is not None
        and not context.getConf().contains("spark.executorEnv.OMP_NUM_THREADS"),
    )
    problems: list[str] = []
    with ExitStack() as stack:
        stack.callback(server.close)
        stack.callback(console.gang.close)
        tag = stack.enter_context(spark_job.tagged(context, num_proc, backend))
        ranks = context.parallelize(range(num_proc), num_proc)
        if profile is not None:
            ranks = ranks.withResources(profile)
        gathered = ranks.barrier().mapPartitions(task)

        def act_on(verdict: Verdict) -> None:
            """Ends a gang that hangs; where Spark does not know that yet, its job as well."""
            problems.append(verdict.launch_problem)
            for failure in verdict.failures:
                console.failed(failure)
            console.gang.stop()
            lost = {failure.world.rank for failure in verdict.failures if failure.status == LOST}
            deadline = time.monotonic() + config.shutdown_grace_seconds + STOP_SECONDS
            while not job.wait(0.1):
                others_ended = bool(lost) and console.watch.running() <= lost
                if time.monotonic() > deadline or others_ended or verdict.launch_problem:
                    with suppress(Exception):
                        context.cancelJobsWithTag(tag)
                    break

        console.watch = server.watch = Watch(
            config=config,
            backend=get_backend(backend),
            num_proc=num_proc,
            ask_stacks=server.ask_stacks,
            on_verdict=act_on,
            lost_slots=_SlotCheck(context, num_proc, profile),
        )
        server.start()
        job = spark_job.Job(lambda: list(gathered.collect()))
        console.watch.start()
        stack.callback(console.watch.close)
        try:
            outcomes = job.result()
            server.flush()  # What ranks told may still be on its way.
            console.all_ended(outcomes)
            return with_failures(outcomes, console.failures)
        except BaseException as error:
            # Spark may leave the other tasks a few seconds; their workers get none.
            console.gang.stop()
            with suppress(Exception):  # Its JVM may be gone, and then so is the job.
                context.cancelJobsWithTag(tag)
            job.wait(CANCEL_SECONDS)
            if not isinstance(error, Exception):
                raise
            if any(problems):
                # What a restart has lost, another one may have again.
                raise (RunnerError if is_restart else LaunchError)(problems[0]) from None
            failures = console.failures
            application_end = end_of(context)
            if application_end:
                # Its tasks are lost because of it.
                failures = [failure for failure in failures if failure.status != LOST]
            if spark_failure.is_executor_loss(error):
                failures = _with_lost(console, error)
            if explains_the_end(failures):
                return failures
            raise spark_failure.explain(
                error,
                python=context.pythonExec,
                failures=failures,
                application_end=application_end,
            ) from None
        finally:
            # Who is lost has no last word.
            is_complete = all(failure.status != LOST for failure in console.failures)
            server.flush(FLUSH_SECONDS if is_complete else 0.5)


class _SlotCheck:
    """Looks, now and then, whether the slots of ranks that have not started are still there.

    Spark counts them when a barrier stage is submitted, and never again: a stage whose slots are
    lost after that would wait for ever.
    """

    def __init__(
        self, context: SparkContext, num_proc: int, profile: ResourceProfile | None
    ) -> None:
        self._context, self._num_proc, self._profile = context, num_proc, profile
        self._next_at = time.monotonic() + SLOT_CHECK_SECONDS

    def __call__(self) -> str | None:
        if is_single_host(self._context) or time.monotonic() < self._next_at:
            return None
        self._next_at = time.monotonic() + SLOT_CHECK_SECONDS
        available = slots.count_slots(self._context, self._profile)
        if available >= self._num_proc:
            return None
        return (
            f"{self._num_proc} ranks were to start, and the cluster has only {available} slots "
            "left: executors were lost after the run was submitted."
        )


def _with_lost(console: Console, error: Exception) -> list[Outcome]:
    """The failures, with the ranks of an executor whose loss Spark may know of before we do."""
    deadline = time.monotonic() + GONE_SECONDS
    while not (missing := console.watch.missing()) and time.monotonic() < deadline:
        time.sleep(0.05)
    known = {failure.world.rank for failure in console.failures}
    found = [*console.failures, *(one for one in missing if one.world.rank not in known)]
    return spark_failure.with_lost_executors(found, error)


def _listen_on_driver(context: SparkContext) -> tuple[socket.socket, str]:
    """Opens the log channel's socket. Returns it, and the name that executors are told.

    It is bound to the one address by which executors reach the driver, also where Spark itself
    listens on all interfaces; only under address translation, where the driver has no such
    address, to the one that spark.driver.bindAddress names.
    """
    if is_single_host(context):
        return network.listen(network.LOOPBACK), network.LOOPBACK
    configuration = context.getConf()
    host = (configuration.get("spark.driver.host") or network.LOOPBACK).strip("[]")
    bound = (configuration.get("spark.driver.bindAddress") or host).strip("[]")
    try:
        if bound in ("0.0.0.0", "::") and network.interface_of(network.resolve(host)):  # noqa: S104
            bound = host
        return network.listen(network.resolve(bound)), host
    except OSError as error:
        raise LaunchError(
            f"The driver cannot listen on {bound} ({error}), which spark.driver.bindAddress or "
            "spark.driver.host names: set it to an address of this host that executors can reach."
        ) from error
