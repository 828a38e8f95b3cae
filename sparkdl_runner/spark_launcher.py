"""Runs a gang as the tasks of one barrier-mode Spark stage."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from sparkdl_runner import network, spark_failure, spark_job
from sparkdl_runner.agent import RankTask
from sparkdl_runner.config import RunConfig
from sparkdl_runner.console import Console
from sparkdl_runner.gang import Gang
from sparkdl_runner.log_server import LogServer
from sparkdl_runner.outcome import Outcome
from sparkdl_runner.spark_context import is_single_host

if TYPE_CHECKING:
    from pyspark import SparkContext

# How long a cancelled job's tasks may take to end.
CANCEL_SECONDS = 10.0


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
        spark_job.let_the_jvm_exit(context)
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
    with (
        closing(server),
        closing(console.gang),
        spark_job.tagged(context, num_proc, backend) as tag,
    ):
        ranks = context.parallelize(range(num_proc), num_proc).barrier().mapPartitions(task)
        job = spark_job.Job(lambda: list(ranks.collect()))
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


def _driver_address(context: SparkContext) -> tuple[str, str]:
    """The address to listen on, and the one that executors are told."""
    if is_single_host(context):
        return network.LOOPBACK, network.LOOPBACK
    host = context.getConf().get("spark.driver.host") or network.LOOPBACK
    bind_address = context.getConf().get("spark.driver.bindAddress") or host
    return network.resolve(bind_address), host
