"""Processes of a benchmark's own: children that run one of its modules, and what they use."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil

JOBS = Path(__file__).parents[2]
MOST_LETTERS = 200
START_SECONDS = 60
_Answer = TypeVar("_Answer")
_start: Any = None


def module_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of this package."""
    return [python, "-m", f"benchmarks.{module}", *arguments]


def module_environment() -> dict[str, str]:
    """The environment in which such a command finds this package."""
    before = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [str(JOBS), *map(os.path.abspath, before)]  # It may run in another folder.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def in_fresh_processes(
    function: Callable[..., _Answer],
    requests: Sequence[tuple[Any, ...]],
    *,
    preloaded: Sequence[str],
) -> list[_Answer]:
    """Calls a function in new processes, one for each request, and raises what it raises.

    The processes are forked from one that has only imported the ``preloaded`` modules, where they
    are installed. Where all are to begin together, the function calls :func:`await_others`.
    """
    # Where the processes find this package; petastorm's warnings are many.
    os.environ.update(module_environment(), PYTHONWARNINGS="ignore")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *preloaded])
    start = (context.Barrier(len(requests)),)
    with ProcessPoolExecutor(len(requests), context, _remember, start) as pool:
        answers = [pool.submit(function, *one) for one in requests]
        return [one.result() for one in answers]


def _remember(start: Any) -> None:
    global _start
    _start = start


def await_others() -> None:
    """Waits in a process of :func:`in_fresh_processes` until all of them are here.

    Raises:
        threading.BrokenBarrierError: One is not here after a minute: it failed before.
    """
    if _start is not None:
        _start.wait(START_SECONDS)


def cpu_seconds() -> float:
    """The processor time of this process and its children, above all the JVM.

    It counts children that have ended, at the process that waited for them: Spark ends Python
    workers that were idle for a minute, and without them the time would go back.
    """
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        # Its clock, by Linux's number: cpu_times() counts hundredths, and few rows may take none.
        total += time.clock_gettime(~process.pid << 3 | 2)
        times = process.cpu_times()
        total += times.children_user + times.children_system
    return total


def last_line(errors: str) -> str:
    """The last line of what a process wrote to its standard error: Python's error, shortened."""
    lines = errors.strip().splitlines() or ["it ended without a word"]
    return lines[-1] if len(lines[-1]) <= MOST_LETTERS else f"{lines[-1][:MOST_LETTERS]}…"
