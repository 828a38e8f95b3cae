"""Spare workers, as the driver has them: whether a call leaves any, and how all are ended."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from sparkdl_runner.launch.agent.spares.pool import end_spares
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.context import is_spark_connect, running_context

SPARE_SECONDS = 60.0


def spare_seconds(config: RunConfig) -> float:
    """How long a spare worker waits for the next call; 0 if none is wanted.

    By default there are some only where a person is at work.
    """
    if config.spare_seconds is not None:
        return config.spare_seconds
    return SPARE_SECONDS if is_interactive() else 0.0


def is_interactive() -> bool:
    """Whether lines are typed here, or a notebook's cells are run."""
    if hasattr(sys, "ps1") or sys.flags.interactive or "dbruntime" in sys.modules:
        return True
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None


def end_spare_workers() -> None:
    """Ends the spare workers of this process and of its Spark session, and waits for their end.

    They hold memory, and end by themselves after ``RunConfig.spare_seconds``. On Spark this is a
    stage of as many tasks as there are slots, and waits for those that are busy.
    """
    end_spares()
    if is_spark_connect():
        from sparkdl_runner.launch.driver.connect.spares import end_spares_of_session

        end_spares_of_session()
        return
    context = running_context()
    if context is not None:
        from sparkdl_runner.launch.driver.spark.allocation import is_dynamic
        from sparkdl_runner.launch.driver.spark.context import settings_of
        from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_stage
        from sparkdl_runner.launch.driver.spark.slots import count_places

        # In a barrier stage all tasks run at once, and so each in a Python process of its own.
        slots = count_places(context)
        is_barrier = not is_dynamic(settings_of(context).get)
        tasks = rank_stage(context, slots, None, is_barrier=is_barrier)
        tasks.mapPartitions(_end_spares).count()


def _end_spares(_rows: Iterable[Any]) -> Iterator[Any]:
    end_spares()
    return iter(())
