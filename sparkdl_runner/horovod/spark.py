"""``run`` and ``run_elastic``, with the arguments and the meaning of ``horovod.spark``'s."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TextIO

from sparkdl_runner.horovod.spark_backend import SparkBackend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.context import (
    is_single_host,
    running_context,
    settings_of,
)

__all__ = ["run", "run_elastic"]

# Horovod resets for ever unless reset_limit says otherwise.
_MOST_RESETS = 1000


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    run_config: RunConfig | None = None,
) -> list[Any]:
    """Runs a function that calls ``hvd.init()`` in every rank.

    Args:
        fn: The function.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        num_proc: How many ranks. None, the default, for ``spark.default.parallelism`` where it is
            set, else for as many as the cluster has slots.
        start_timeout: See ``SparkBackend``, as of those below. None takes the variable
            HOROVOD_SPARK_START_TIMEOUT, else the defaults of ``RunConfig``.
        use_mpi: Only False.
        use_gloo: Only True.
        extra_mpi_args: Of no effect.
        env: Variables for the ranks.
        stdout: Gets what ranks print.
        stderr: Gets what ranks write to ``sys.stderr``.
        verbose: Of no effect.
        nics: The interface by which ranks meet.
        prefix_output_with_timestamp: Whether each line begins with the time.
        executable: Only this Python.
        run_config: All further settings.

    Returns:
        A list of the ranks' values: that of rank 0 first, then that of rank 1.

    Raises:
        LaunchError: MPI or another Python is asked for, or the ranks cannot be started.
        Exception: What ``SparkBackend`` and ``DistributedRunner.run`` raise.
    """
    backend = SparkBackend(
        _slots_of_settings() if num_proc is None else num_proc,
        run_config=run_config,
        env=env,
        start_timeout=_start_timeout(start_timeout),
        stdout=stdout,
        stderr=stderr,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
        nics=nics,
        use_mpi=use_mpi,
        use_gloo=use_gloo,
        executable=executable,
    )
    return backend.run(fn, args, kwargs)


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: str | Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    run_config: RunConfig | None = None,
) -> list[Any]:
    """Runs a function in ranks that are started again when some are lost, with fewer or more.

    Code of ``hvd.elastic.run`` goes on from its last commit. Commits are kept at
    ``RunConfig.elastic_state_url``; on a Spark of one host, ``local[N]``, in a temporary folder
    where that is not set.

    Args:
        fn: See ``run``, as of all that is not described here.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        num_proc: What the next two are where they are not given.
        min_num_proc: With how few ranks the run may start, or go on.
        max_num_proc: How many ranks there are where the cluster has slots for them.
        start_timeout: See ``run``.
        elastic_timeout: How long lost slots are waited for before the run goes on with fewer, and
            how long the new ranks may take to meet; None for the defaults of ``RunConfig``.
        reset_limit: How often ranks may be started again; None for as often as they are lost.
        env: Variables for the ranks.
        stdout: Gets what ranks print.
        stderr: Gets what ranks write to ``sys.stderr``.
        verbose: Of no effect.
        nics: The interface by which ranks meet.
        prefix_output_with_timestamp: Whether each line begins with the time.
        min_np: ``min_num_proc`` by its earlier name.
        max_np: ``max_num_proc`` by its earlier name.
        run_config: All further settings.

    Returns:
        A list of the ranks' values in the last attempt: that of rank 0 first.

    Raises:
        ValueError: There are to be more ranks at least than at most.
        Exception: What ``run`` raises.
    """
    for earlier, value in {"min_np": min_np, "max_np": max_np}.items():
        if value is not None:
            name = earlier.replace("np", "num_proc")
            warnings.warn(f"{earlier} is deprecated: use {name}.", DeprecationWarning, stacklevel=2)
    least = next((n for n in (min_np, min_num_proc, num_proc) if n is not None), None)
    most = next((n for n in (max_np, max_num_proc, num_proc) if n is not None), None)
    config = run_config or RunConfig()
    config = replace(
        config,
        min_num_proc=config.min_num_proc if least is None else least,
        max_restarts=config.max_restarts or _MOST_RESETS if reset_limit is None else reset_limit,
    )
    seconds = _start_timeout(start_timeout)
    if seconds is not None:
        config = replace(config, start_timeout_seconds=seconds, slot_wait_seconds=seconds)
    if elastic_timeout is not None:
        config = replace(
            config, slot_wait_seconds=elastic_timeout, rendezvous_timeout_seconds=elastic_timeout
        )
    with ExitStack() as stack:
        context = running_context()
        if config.elastic_state_url is None and context is not None and is_single_host(context):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-elastic-"))
            config = replace(config, elastic_state_url=folder)
        backend = SparkBackend(
            _slots_of_settings() if most is None else most,
            run_config=config,
            env=env,
            stdout=stdout,
            stderr=stderr,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            nics=nics,
        )
        return backend.run(fn, args, kwargs)


def _slots_of_settings() -> int:
    """``spark.default.parallelism`` where it is set, else 0: all slots of the cluster."""
    context = running_context()
    return 0 if context is None else int(settings_of(context).get("spark.default.parallelism", "0"))


def _start_timeout(given: float | None) -> float | None:
    asked = os.environ.get("HOROVOD_SPARK_START_TIMEOUT")
    return float(asked) if given is None and asked else given
