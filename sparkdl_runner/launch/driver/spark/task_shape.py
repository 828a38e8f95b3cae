"""The shape of a task of ranks: what it asks Spark for, and how many ranks it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.allocation import TASK_GPUS, Settings, is_local
from sparkdl_runner.launch.driver.spark.context import settings_of
from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_profile

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile


@dataclass(frozen=True)
class TaskShape:
    """The resources and the number of ranks of each task of a run."""

    profile: ResourceProfile | None = None
    """What a task asks for; None if Spark's own settings suffice."""
    ranks: int = 1
    """How many ranks it starts."""


def task_shape(context: SparkContext, config: RunConfig, num_proc: int) -> TaskShape:
    """The shape of the tasks of a run.

    Args:
        context: The application's context.
        config: The run's.
        num_proc: How many ranks; 0 for as many as there are slots.

    Raises:
        LaunchError: Ranks would share GPUs or get none, or are no multiple of those of a task.
    """
    ranks = ranks_per_task(settings_of(context).get, config, num_proc)
    return TaskShape(rank_profile(context, ranks), ranks)


def ranks_per_task(settings: Settings, config: RunConfig, num_proc: int) -> int:
    """How many ranks a task starts; see ``task_shape``."""
    gpus = 0 if is_local(settings) else int(float(settings(TASK_GPUS) or 0))
    ranks, reason = config.ranks_per_task, "RunConfig.ranks_per_task"
    if ranks is None:
        ranks, reason = max(1, gpus), f"one for each of its GPUs, {TASK_GPUS}"
    elif 0 < gpus < ranks:
        raise LaunchError(
            f"{reason} is {ranks}, and a task has {gpus} "
            f"GPU{'' if gpus == 1 else 's'} ({TASK_GPUS}), so ranks would share GPUs: set "
            f"ranks_per_task to {gpus} or less, or {TASK_GPUS} to {ranks} or more."
        )
    if 0 < num_proc < ranks:
        return num_proc
    if num_proc % ranks:
        raise LaunchError(
            f"{num_proc} ranks are no multiple of {ranks}, which each Spark task starts "
            f"({reason}): ask for {num_proc // ranks * ranks} or {-(-num_proc // ranks) * ranks} "
            "ranks, or set RunConfig.ranks_per_task to a number that divides them."
        )
    return ranks
