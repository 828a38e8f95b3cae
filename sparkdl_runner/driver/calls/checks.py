"""What is checked of a call of the runner before anything else."""

from __future__ import annotations

import sys

from sparkdl_runner import world
from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import LaunchError


def check_count(name: str, value: object) -> None:
    """Raises TypeError unless ``value`` is an int (and no bool)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name} is {value!r}, a {type(value).__name__}; it must be an int: positive for that "
            "many ranks on Spark, negative for that many processes on this host."
        )


def check_config(config: object) -> None:
    """Raises TypeError unless ``config`` is a ``RunConfig`` or None."""
    if config is not None and not isinstance(config, RunConfig):
        raise TypeError(f"config is {config!r}, a {type(config).__name__}; it must be a RunConfig.")


def check_on_driver() -> None:
    """Raises LaunchError in a rank and in a Spark task."""
    if world.in_worker():
        raise LaunchError(
            f"run() was called inside rank {world.current_world().rank} of another run; it must be "
            "called on the driver."
        )
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.TaskContext.get() is not None:
        raise LaunchError(
            "run() was called inside a Spark task; it must be called on the driver, outside of "
            "functions that are passed to Spark."
        )
