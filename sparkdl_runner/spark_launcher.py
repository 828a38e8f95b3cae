"""Runs a gang as the tasks of one barrier-mode Spark stage."""

from __future__ import annotations

import atexit
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner import network, spark_failure
from sparkdl_runner.agent import RankTask
from sparkdl_runner.config import RunConfig
from sparkdl_runner.console import Console
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.gang import Gang
from sparkdl_runner.log_channel import LogServer
from sparkdl_runner.outcome import Outcome

if TYPE_CHECKING:
    from pyspark import SparkContext

SLOT_POLL_SECONDS = 0.5
# How long a cancelled job's tasks may take to end.
CANCEL_SECONDS = 10.0


def require_spark_context() -> SparkContext:
    """Returns the running application's SparkContext.

    Raises:
        LaunchError: There is none, or it is reached by Spark Connect only.
    """
    try:
        from pyspark import SparkContext
    except ImportError:
        raise LaunchError(
            "A positive number of ranks runs on Spark, and pyspark is not installed here: run "
            "pip install 'sparkdl-runner[spark]', or use a negative number to run on this host "
            "alone, without Spark."
        ) from None
    if _is_spark_connect():
        raise LaunchError(
            "This session reaches Spark through Spark Connect, which offers no barrier tasks with "
            "a channel to the driver: run on a cluster with a classic session (on Databricks: "
            "dedicated access mode, not serverless or standard), or use a negative number to run "
            "on this host alone."
        )
    context = SparkContext._active_spark_context
    if context is None:
        raise LaunchError(
            "There is no Spark session: create one with SparkSession.builder.getOrCreate() before "
            "run(), or use a negative number to run on this host alone, without Spark."
        )
    return context


def _is_spark_connect() -> bool:
    try:
        from pyspark.sql.utils import is_remote
    except ImportError:
        return False
    return bool(is_remote())


def count_slots(context: SparkContext) -> int:
    """How many tasks of the default resource profile the cluster can run at once, busy or not."""
    scala_context = context._jsc.sc()
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return int(scala_context.maxNumConcurrentTasks(profile))


def wait_for_slots(context: SparkContext, needed: int, config: RunConfig) -> int:
    """Makes sure that the cluster has enough slots, or will have soon.

    Args:
        context: The application's context.
        needed: How many ranks there will be; 0 for as many as there are slots.
        config: Says how long to wait for executors that have yet to register.

    Returns:
        The number of ranks to start.

    Raises:
        LaunchError: There are too few, or dynamic allocation is on.
    """
    if (context.getConf().get("spark.dynamicAllocation.enabled") or "").lower() == "true":
        raise LaunchError(
            "spark.dynamicAllocation.enabled is true, and Spark starts no barrier stage then: "
            "set it to false and give the cluster a fixed size (spark.executor.instances)."
        )
    deadline = time.monotonic() + (0 if is_single_host(context) else config.slot_wait_seconds)
    while (available := count_slots(context)) < max(needed, 1):
        if time.monotonic() >= deadline:
            raise LaunchError(_too_few_slots(context, needed, available))
        time.sleep(SLOT_POLL_SECONDS)
    return needed or available


def is_single_host(context: SparkContext) -> bool:
    """Whether all tasks run in the driver's own process."""
    return re.fullmatch(r"local(\[.*\])?", context.master or "") is not None


def _too_few_slots(context: SparkContext, needed: int, available: int) -> str:
    if is_single_host(context):
        remedy = f"start the session with .master('local[{needed}]')"
    else:
        remedy = (
            "add executors or cores (spark.executor.instances, spark.executor.cores, "
            "spark.cores.max), or lower spark.task.cpus or spark.task.resource.gpu.amount, or "
            "raise RunConfig.slot_wait_seconds if executors are still starting"
        )
    return (
        f"{needed} ranks need {needed} task slots at once, and the cluster has {available} "
        f"(master {context.master}): ask for at most {available} ranks, or {remedy}."
    )


def launch(
    context: SparkContext,
    *,
    num_proc: int,
    backend: str,
    function: bytes,
    config: RunConfig,
    attempt: int = 0,
) -> list[Outcome]:
    """Runs the function as ``num_proc`` ranks and waits for all of them to end.

    Args:
        context: The application's context.
        num_proc: The number of ranks; the slots are there.
        backend: The backend's name.
        function: Made by ``function.pack``.
        config: The run's settings.
        attempt: Which submission of the gang this is.

    Returns:
        How each rank ended, for as many as could tell.

    Raises:
        RunnerError: Spark ended the stage, and no rank said why.
    """
    console = Console(show_output=config.driver_log_verbosity == "all")
    bind_address, host = _driver_address(context)
    server = LogServer(network.listen(bind_address), host=host, num_proc=num_proc, sink=console)
    console.gang = Gang(server.stop_ranks)
    if is_single_host(context):
        _let_the_jvm_exit(context)
    task = RankTask(
        backend=backend,
        attempt=attempt,
        function=function,
        search_path=tuple(path for path in sys.path if path),
        channel=server.channel,
        relay_output=config.driver_log_verbosity == "all",
        shutdown_grace_seconds=config.shutdown_grace_seconds,
        single_host=is_single_host(context),
    )
    server.start()
    with closing(server), closing(console.gang), _spark_job(context, num_proc, backend) as tag:
        ranks = context.parallelize(range(num_proc), num_proc).barrier().mapPartitions(task)
        job = _Job(lambda: list(ranks.collect()))
        try:
            return job.result()
        except BaseException as error:
            # Spark may leave the other tasks a few seconds; their workers get none.
            console.gang.stop()
            context.cancelJobsWithTag(tag)
            job.wait(CANCEL_SECONDS)
            if console.failures:
                return console.failures
            if not isinstance(error, Exception):
                raise
            raise spark_failure.explain(error, python=context.pythonExec) from None
        finally:
            server.flush()


class _Job:
    """A Spark action in a thread of its own, with the caller's job group and other properties.

    Py4J gives each thread one connection, on which the JVM answers in order. Were the action on
    the caller's, a Ctrl-C there could cancel nothing before the action had ended.
    """

    def __init__(self, action: Callable[[], list[Outcome]]) -> None:
        from pyspark import InheritableThread

        self._end: Future[list[Outcome]] = Future()
        self._action = action
        self._thread = InheritableThread(target=self._run, name="sparkdl-job", daemon=True)
        self._thread.start()

    def result(self) -> list[Outcome]:
        """Waits for the action; may be interrupted. Raises what the action raised."""
        return self._end.result()

    def wait(self, timeout_seconds: float) -> None:
        """Waits until the action has ended one way or the other, at most so long."""
        wait([self._end], timeout_seconds)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            self._end.set_result(self._action())
        except BaseException as error:
            self._end.set_exception(error)


def _let_the_jvm_exit(context: SparkContext) -> None:
    """Ends Spark's barrier timer when this process ends.

    Up to Spark 3.5 that timer's thread is no daemon. With a local master it lives in the driver's
    JVM, which under spark-submit would then wait for it for ever after the script's end.
    """
    global _jvm_will_exit
    if _jvm_will_exit or int(context.version.partition(".")[0]) >= 4:
        return
    _jvm_will_exit = True
    jvm: Any = context._jvm
    barrier = jvm.java.lang.Class.forName("org.apache.spark.BarrierTaskContext$")
    timer = barrier.getMethod("org$apache$spark$BarrierTaskContext$$timer", None)
    cancel = timer.invoke(barrier.getField("MODULE$").get(None), None).cancel

    def cancel_if_it_still_runs() -> None:
        with suppress(Exception):  # The JVM may be gone by then.
            cancel()

    atexit.register(cancel_if_it_still_runs)


_jvm_will_exit = False


def _driver_address(context: SparkContext) -> tuple[str, str]:
    """The address to listen on, and the one that executors are told."""
    if is_single_host(context):
        return network.LOOPBACK, network.LOOPBACK
    host = context.getConf().get("spark.driver.host") or network.LOOPBACK
    bind_address = context.getConf().get("spark.driver.bindAddress") or host
    return network.resolve(bind_address), host


@contextmanager
def _spark_job(context: SparkContext, num_proc: int, backend: str) -> Iterator[str]:
    """Names the job in Spark's UI, and tags it so that it alone can be cancelled."""
    tag = f"sparkdl-runner-{uuid.uuid4().hex}"
    description = context.getLocalProperty("spark.job.description")
    context.setLocalProperty(
        "spark.job.description", description or f"sparkdl_runner: {num_proc} ranks, {backend}"
    )
    context.addJobTag(tag)
    try:
        yield tag
    finally:
        context.removeJobTag(tag)
        context.setLocalProperty("spark.job.description", description)  # type: ignore[arg-type]
