"""One GPU for each rank, by Spark's stage-level scheduling where that is possible.

Spark gives a task as many GPUs as ``spark.task.resource.gpu.amount`` says. Where that is 1 or more,
there is nothing to do: a task starts a rank for each. Clusters for data work leave it unset or at a
fraction, so that many small tasks share a GPU; there the ranks' stage asks for one GPU a rank.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.allocation import (
    EXECUTOR_GPUS,
    TASK_GPUS,
    is_dynamic,
)
from sparkdl_runner.launch.driver.spark.context import settings_of

if TYPE_CHECKING:
    from pyspark import RDD, RDDBarrier, SparkContext
    from pyspark.resource import ResourceProfile

# How an executor finds its GPUs, and where Kubernetes gets them.
GPU_SOURCE = ("discoveryScript", "vendor")
_WITH_STAGE_LEVEL = {"spark": (3, 4, 0), "yarn": (3, 5, 1), "k8s": (3, 5, 1)}
"""The first version of each kind of master that can do it without dynamic allocation."""


def rank_profile(context: SparkContext, ranks: int = 1) -> ResourceProfile | None:
    """The resources of the ranks' tasks; None if Spark's own settings suffice.

    Args:
        context: The application's.
        ranks: How many of them a task has.

    Raises:
        LaunchError: The executors have GPUs, tasks get none or share them, and this Spark cannot
            be asked for another share for one stage; or there are too few for so many ranks.
    """
    settings = settings_of(context)
    per_executor = int(settings.get(EXECUTOR_GPUS) or 0)
    per_task = float(settings.get(TASK_GPUS) or 0)
    if per_executor == 0 or per_task >= 1:
        return None
    if ranks > per_executor:
        raise LaunchError(
            f"RunConfig.ranks_per_task is {ranks}, and executors have {per_executor} GPU(s) each "
            f"({EXECUTOR_GPUS}), so ranks would share GPUs: set ranks_per_task to {per_executor} "
            "or less."
        )
    obstacle = _obstacle(context, settings.get("spark.executor.cores"))
    if obstacle is not None:
        raise LaunchError(
            f"Executors have {per_executor} "
            f"GPU(s) each (spark.executor.resource.gpu.amount), and a task gets {per_task:g} of "
            "one (spark.task.resource.gpu.amount), so ranks would share GPUs or get none. "
            f"Stage-level scheduling could give each rank its own, but {obstacle}. Set "
            f"{TASK_GPUS} to 1."
        )
    from pyspark.resource import (
        ExecutorResourceRequests,
        ResourceProfileBuilder,
        TaskResourceRequests,
    )

    # All versions limit an executor's tasks by cores, but not all by GPUs.
    cores = int(settings.get("spark.executor.cores") or 1)
    cpus = max(1, ranks * cores // per_executor)
    requests = TaskResourceRequests().cpus(cpus).resource("gpu", ranks)
    builder = ResourceProfileBuilder().require(requests)
    if is_dynamic(settings.get):  # Executors come for the stage alone, and are asked for with it.
        gpu = [settings.get(f"spark.executor.resource.gpu.{name}") or "" for name in GPU_SOURCE]
        executors = ExecutorResourceRequests().cores(cores).resource("gpu", per_executor, *gpu)
        builder = builder.require(executors)
    profile: ResourceProfile = builder.build
    return profile


def rank_stage(
    context: SparkContext, num_tasks: int, profile: ResourceProfile | None, *, is_barrier: bool
) -> RDD[int] | RDDBarrier[int]:
    """A stage of tasks for ranks.

    Args:
        context: The application's.
        num_tasks: How many.
        profile: What each task asks for; None for what all tasks get.
        is_barrier: Whether Spark starts all of them at once.
    """
    tasks = context.parallelize(range(num_tasks), num_tasks)
    if profile is not None:
        tasks = tasks.withResources(profile)
    return tasks.barrier() if is_barrier else tasks


def _obstacle(context: SparkContext, executor_cores: str | None) -> str | None:
    master = (context.master or "").partition(":")[0]
    least = _WITH_STAGE_LEVEL.get(master)
    if least is None:
        return f"the master {context.master} has none"
    version = tuple(int(part) for part in re.findall(r"\d+", context.version)[:3])
    if version < least:
        return (
            f"on {master} it needs Spark {'.'.join(map(str, least))}, and this is {context.version}"
        )
    if int(executor_cores or 0) < 2:
        return "it needs spark.executor.cores to be set, to 2 or more"
    return None
