"""Spare workers of a Spark application: how its tasks start them, after a call or before one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkdl_runner.launch.agent.spares.task import SpareTask
from sparkdl_runner.launch.agent.worker_environment import driver_variables
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.allocation import is_barrier
from sparkdl_runner.launch.driver.spark.context import require_spark_context, settings_of
from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_stage
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape, task_shape

if TYPE_CHECKING:
    from pyspark import SparkContext


def spare_task(
    context: SparkContext,
    shape: TaskShape,
    backend: str,
    variables: Mapping[str, str],
    seconds: float,
) -> SpareTask:
    """The task that starts spare workers like the workers of this application.

    Args:
        context: The application's.
        shape: That of the ranks' tasks.
        backend: The backend's name.
        variables: The variables of the driver that ranks get.
        seconds: How long a spare waits for the next call; 0 for none.
    """
    is_set_by_hand = settings_of(context).contains("spark.executorEnv.OMP_NUM_THREADS")
    return SpareTask(
        backend=backend,
        variables=variables,
        seconds=seconds,
        # Spark goes by spark.task.cpus; a profile's tasks may have more, one of several ranks less.
        spark_set_threads=shape != TaskShape() and not is_set_by_hand,
        ranks=shape.ranks,
    )


def start_spares(num_proc: int, backend: str, config: RunConfig, *, seconds: float) -> None:
    """Starts spare workers for a run that comes soon: they import the backend meanwhile.

    This is a stage of the tasks that ranks will have, which ends at once. The run takes the spares
    if they fit, and ends them otherwise.

    Args:
        num_proc: How many ranks the run will have.
        backend: The name of its backend.
        config: The run's.
        seconds: How long they wait for it at most.
    """
    context = require_spark_context()
    if not is_barrier(settings_of(context).get, config):
        return  # Its executors come with the run.
    shape = task_shape(context, config, num_proc)
    variables = driver_variables(config.environment)
    task = spare_task(context, shape, backend, variables, seconds)
    # All its tasks run at once, and so each in a Python process of its own.
    stage = rank_stage(context, num_proc // shape.ranks, shape.profile, is_barrier=True)
    stage.mapPartitions(task).count()
