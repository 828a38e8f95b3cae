"""Checks of a call of the runner, before anything else."""

from __future__ import annotations

import sys
from dataclasses import replace

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig, check_min_num_proc
from sparkdl_runner.rank import world


def ranks_asked(num_proc: int | tuple[int, int], config: RunConfig | None) -> tuple[int, RunConfig]:
    """The number of ranks that is wanted, and the config with the least number that will do.

    Args:
        num_proc: How many ranks; or the least and the most of them.
        config: What the caller gave.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: The two are no range, or ``config.min_num_proc`` is another least number.
    """
    check_config(config)
    config = config or RunConfig()
    if isinstance(num_proc, tuple | list):
        if len(num_proc) != 2 or any(type(count) is not int for count in num_proc):
            raise TypeError(
                f"num_proc is {num_proc!r}; it must be an int, or a pair of them: (least, most)."
            )
        least, num_proc = num_proc
        if not 1 <= least <= num_proc:
            raise ValueError(
                f"num_proc is {(least, num_proc)!r}; it must be the least and the most ranks on "
                "Spark, from 1. A number of ranks on this host is one negative int."
            )
        if config.min_num_proc not in (None, least):
            raise ValueError(
                f"num_proc is {(least, num_proc)!r} and min_num_proc is {config.min_num_proc}; "
                "either says with how few ranks a run may go on: leave min_num_proc out."
            )
        config = replace(config, min_num_proc=least)
    check_count("num_proc", num_proc)
    check_min_num_proc(config, num_proc)
    return num_proc, config


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
        raise TypeError(
            f"run_config is {config!r}, a {type(config).__name__}; it must be a RunConfig."
        )


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
