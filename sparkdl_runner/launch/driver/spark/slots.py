"""Slots: how many tasks the cluster can run at once, and what to do if they are too few."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.asked import nothing_fits
from sparkdl_runner.launch.driver.spark.coming import coming_executors
from sparkdl_runner.launch.driver.spark.context import end_of, is_single_host
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape
from sparkdl_runner.launch.driver.stop_request import StopRequest

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_SECONDS = 0.5
SAY_SECONDS = 10.0
# How long executors may take that have been given a place, beyond the wait for slots.
COMING_SECONDS = 600.0
CHECK_SECONDS = 5.0
_ONE_RANK = TaskShape()


def counted(number: int, one: str, many: str) -> str:
    """A number with its words: ``1 slot is``, ``2 slots are``."""
    return f"{number} {one if number == 1 else many}"


def count_places(context: SparkContext, shape: TaskShape = _ONE_RANK) -> int:
    """How many ranks the cluster can run at once: those of all slots, busy or not."""
    scala_context = context._jsc.sc()
    manager = scala_context.resourceProfileManager()
    if shape.profile is None:
        wanted = manager.defaultResourceProfile()
    else:
        # The JVM's object for the profile, which is made when a stage first asks for it.
        stage = context.parallelize([0], 1).withResources(shape.profile)
        wanted = stage._jrdd.rdd().getResourceProfile()
    return shape.ranks * int(scala_context.maxNumConcurrentTasks(wanted))


def wait_for_slots(
    context: SparkContext,
    needed: int,
    config: RunConfig,
    *,
    shape: TaskShape = _ONE_RANK,
    least: int | None = None,
    asked_seconds: float = 0.0,
    stop: StopRequest | None = None,
) -> int:
    """Makes sure that the cluster has enough slots, or will have soon.

    Executors that have been given a place are waited for longer than ``config`` says, as far as
    ``COMING_SECONDS``: their hosts may fetch an image or unpack an environment. Not if ``least``
    ranks have slots, or the wait is 0.

    Args:
        context: The application's context.
        needed: How many ranks there will be; 0 for as many as there are slots, which must then be
            ``min_num_proc`` at least.
        config: Says how long to wait for executors that have yet to register.
        shape: That of the ranks' tasks.
        least: How few ranks will do, if there are no more slots after that wait.
        asked_seconds: How long executors may take that were asked for in place of lost ones. With
            ``least``, nobody waits longer for them than ``config`` says.
        stop: May end the wait.

    Returns:
        The number of ranks to start.

    Raises:
        LaunchError: There are too few.
        RunCancelledError: ``stop`` was cancelled, or the application ended.
    """
    stop = stop or StopRequest()
    seconds = 0.0
    if not is_single_host(context):
        seconds = max(config.slot_wait_seconds, asked_seconds if least is None else 0.0)
    deadline = time.monotonic() + seconds
    last = deadline + (COMING_SECONDS if seconds else 0.0)
    wanted = needed or config.min_num_proc or 1
    available = _count_places(context, shape)
    say_at = time.monotonic()
    while available < wanted:
        now = time.monotonic()
        if now >= deadline:
            is_enough = least is not None and available >= least
            coming = 0 if is_enough or now >= last else coming_executors(context)
            if not coming:
                break
            tell(
                f"{counted(coming, 'executor has', 'executors have')} been given a place and "
                f"{'has' if coming == 1 else 'have'} yet to start, as where a host first fetches "
                f"an image or unpacks an environment: waiting up to {last - now:.0f} s more."
            )
            deadline = min(last, now + SAY_SECONDS)
            say_at = deadline
        elif now >= say_at:
            say_at = now + SAY_SECONDS
            there = available // shape.ranks
            then = f", and {there} will do after that" if least and available >= least else ""
            tell(
                f"waiting up to {deadline - now:.0f} s for executors that start, "
                f"or that other applications have: "
                f"{counted(-(-wanted // shape.ranks), 'slot is', 'slots are')} needed, "
                f"{counted(there, 'is', 'are')} there{then}."
            )
        stop.cancelled.wait(POLL_SECONDS)
        stop.raise_if_cancelled()
        available = _count_places(context, shape)
    if available >= wanted:
        return needed or available
    if least is not None and available >= least:
        return available
    is_least = not needed and bool(config.min_num_proc)
    raise LaunchError(_too_few_slots(context, wanted, available, shape.ranks, is_least=is_least))


def _count_places(context: SparkContext, shape: TaskShape) -> int:
    # An application that has ended still counts slots.
    if end := end_of(context):
        raise RunCancelledError(
            f"The Spark application ended while the run waited for slots: {end}."
        )
    return count_places(context, shape)


class SlotCheck:
    """Counts the slots now and then for a barrier stage whose ranks have yet to start.

    Spark counts them when the stage is submitted, and never again: a stage whose slots are lost
    after that would wait for ever.
    """

    def __init__(self, context: SparkContext, shape: TaskShape, needed: int) -> None:
        self._context = context
        self._shape = shape
        self._needed = needed
        self._next_at = time.monotonic() + CHECK_SECONDS
        self.has_failed = False
        """Whether there were too few at the last look."""

    def shortage(self) -> str | None:
        """A sentence if there are too few; None if there are enough, or it is no time to look."""
        if time.monotonic() < self._next_at:
            return None
        self._next_at = time.monotonic() + CHECK_SECONDS
        available = count_places(self._context, self._shape)
        self.has_failed = available < self._needed
        if not self.has_failed:
            return None
        left = counted(available // self._shape.ranks, "slot", "slots")
        return (
            f"{counted(self._needed, 'rank was', 'ranks were')} to start, and the cluster has only "
            f"{left} left: executors were lost after the run was submitted."
        )


def _too_few_slots(
    context: SparkContext, needed: int, available: int, each: int, *, is_least: bool
) -> str:
    slots, are_there = -(-needed // each), available // each
    there = counted(are_there, "task slot", "task slots")
    need = counted(slots, "task slot", "task slots")
    ranks = f" of {each} ranks each" if each > 1 else ""
    problem = f"{needed} ranks need {need}{ranks} at once, and the cluster has {are_there}"
    if is_least:
        problem = f"min_num_proc is {needed}, and the cluster has {there}"
    elif needed == 1:
        problem = f"1 rank needs a task slot, and the cluster has {are_there}"
    problem += f" (master {context.master})"
    if is_single_host(context):
        remedy = f"start the session with .master('local[{slots}]')"
    else:
        remedy = (
            "add executors or cores (spark.executor.instances, spark.executor.cores, "
            "spark.cores.max), or lower spark.task.cpus or spark.task.resource.gpu.amount, or "
            "raise RunConfig.slot_wait_seconds if executors are still starting, or if other "
            "applications have them now"
        )
        if not available:
            asked, lower = nothing_fits(context)
            remedy = f"{lower}, or add workers that have more" if lower else f"A{remedy[1:]}"
            return f"{problem}. {asked} {remedy}."
    if is_least:
        return f"{problem}: lower RunConfig.min_num_proc, or {remedy}."
    fewer = f"ask for at most {counted(available, 'rank', 'ranks')}, or " if available else ""
    return f"{problem}: {fewer}{remedy}."
