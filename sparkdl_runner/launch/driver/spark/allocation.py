"""Dynamic allocation: executors come when tasks wait for them, and go when they are idle."""

from __future__ import annotations

import re
from collections.abc import Callable

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig

DYNAMIC = "spark.dynamicAllocation.enabled"
MOST_EXECUTORS = "spark.dynamicAllocation.maxExecutors"
EXECUTOR_CORES, TASK_CPUS = "spark.executor.cores", "spark.task.cpus"
EXECUTOR_GPUS, TASK_GPUS = "spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount"
# Of YARN and Kubernetes. A standalone master's executors have all cores of their worker.
DEFAULT_CORES = "1"

Settings = Callable[[str], str | None]
"""Gives a Spark application's setting by its name; None where it is not set."""


def is_dynamic(settings: Settings) -> bool:
    """Whether executors come and go; with a local master they do not, whatever is set."""
    return (settings(DYNAMIC) or "").lower() == "true" and not is_local(settings)


def is_local(settings: Settings) -> bool:
    """Whether tasks run in the driver, where Spark schedules no GPUs either."""
    return re.match(r"local(\[|$)", settings("spark.master") or "") is not None


def is_barrier(settings: Settings, config: RunConfig) -> bool:
    """Whether the ranks of a run are a barrier stage, as ``RunConfig.gang`` says."""
    return config.gang == "barrier" or (config.gang == "auto" and not is_dynamic(settings))


def chosen_gang(
    settings: Settings, config: RunConfig, num_proc: int, *, ranks_per_task: int = 1
) -> bool:
    """The same, told where the session has chosen it.

    Raises:
        LaunchError: Ranks are ordinary tasks, and the cluster may never have so many slots.
    """
    if is_barrier(settings, config):
        return True
    if is_dynamic(settings):
        _check_most(settings, config.min_num_proc or num_proc, ranks_per_task)
    if config.gang == "auto":
        tell(
            "spark.dynamicAllocation.enabled is true, with which Spark starts no barrier stage: "
            "the ranks are ordinary tasks that wait for one another (RunConfig.gang='tasks')."
        )
    return False


def _check_most(settings: Settings, num_proc: int, ranks_per_task: int) -> None:
    if not num_proc:
        raise LaunchError(
            "num_proc is 0, for as many ranks as there are slots, and "
            "spark.dynamicAllocation.enabled is true, so that executors come only for tasks that "
            "wait: give the number of ranks."
        )
    most = settings(MOST_EXECUTORS) or ""
    master = settings("spark.master") or ""
    cores = settings(EXECUTOR_CORES)
    if not cores and master.startswith(("yarn", "k8s://")):
        cores = DEFAULT_CORES
    if not most.isdigit() or not cores:
        return
    cpus = float(settings(TASK_CPUS) or 1)
    needed = -(-num_proc // ranks_per_task)
    each = int(int(cores) // cpus)
    why = f"{cores} cores ({EXECUTOR_CORES}), of which a task takes {cpus:g} ({TASK_CPUS})"
    if gpus := int(settings(EXECUTOR_GPUS) or 0):  # Ranks do not share one, whatever tasks do.
        by_gpus = int(gpus // max(ranks_per_task, float(settings(TASK_GPUS) or 1)))
        if by_gpus < each:
            each, why = by_gpus, f"{gpus} GPU(s) ({EXECUTOR_GPUS})"
    slots = int(most) * each
    if slots < needed:
        raise LaunchError(
            f"{num_proc} ranks need {needed} task slots at once, and "
            f"spark.dynamicAllocation.maxExecutors={most} allows {slots}: {most} executors of "
            f"{why}. Raise {MOST_EXECUTORS}, or ask for fewer ranks."
        )
