"""``DistributedRunner``: runs a function as N ranks and returns what rank 0 returned."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner import world
from sparkdl_runner.backends import get_backend
from sparkdl_runner.config import RunConfig, check_min_num_proc
from sparkdl_runner.driver import local_launcher
from sparkdl_runner.driver.console import show_notes
from sparkdl_runner.driver.restarts import Restarts
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.tracking.report.progress_bar import ProgressBar, is_watched
from sparkdl_runner.tracking.report.progress_lines import ProgressLines
from sparkdl_runner.tracking.run.datasets import converters_in
from sparkdl_runner.tracking.run.opening import is_set_up
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.wire import function
from sparkdl_runner.wire.outcome import RETURNED, Outcome, root_cause, to_error

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun


class DistributedRunner:
    """Runs a Python function as allreduce ranks, in a barrier stage of Spark or on this host.

    Args:
        num_proc: How many ranks. Positive: that many barrier tasks of the running Spark
            application, one slot each. Negative: ``-num_proc`` processes on this host, with
            neither Spark nor Java, and at most 8 for each of its cores. 0: as many as the
            cluster has slots.
        backend: ``"torch"`` (the function calls ``torch.distributed.init_process_group()``) or
            ``"horovod"`` (the function calls ``hvd.init()``).
        driver_log_verbosity: As in ``RunConfig``, whose value is taken if this is None.
        config: Everything else that has a sensible default.

    Raises:
        TypeError: ``num_proc`` is no int, or ``config`` no RunConfig.
        ValueError: There is no such backend or verbosity, or there are fewer ranks than
            ``config.min_num_proc``.

    Example:
        >>> runner = DistributedRunner(num_proc=-2)
        >>> runner.run(train, epochs=3)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        num_proc: int,
        backend: str = "torch",
        driver_log_verbosity: str | None = None,
        config: RunConfig | None = None,
    ) -> None:
        check_count("num_proc", num_proc)
        check_config(config)
        self.num_proc = num_proc
        self.backend = get_backend(backend)
        self.config = config or RunConfig()
        if driver_log_verbosity is not None:
            self.config = replace(self.config, driver_log_verbosity=driver_log_verbosity)
        check_min_num_proc(self.config, num_proc)
        self.mlflow_run_id: str | None = None
        """The MLflow run of the last call of ``run``; None if it had none."""

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Runs ``main(**kwargs)`` in every rank and waits for all of them.

        Args:
            main: The function. It travels by value if it was defined in a notebook or a script,
                by name if it comes from an installed module.
            **kwargs: Its arguments.

        Returns:
            What ``main`` returned in rank 0.

        Raises:
            TypeError: ``main`` cannot be called, or not with these arguments.
            NotPicklableError: The function, an argument or the result cannot travel.
            LaunchError: The ranks cannot be started; nothing has been.
            WorkerFailedError: The function raised in a rank.
            WorkerDiedError: A rank's process died, or its host was lost.
            WorkerHungError: A rank made no progress.
            RunCancelledError: The Spark job was cancelled, or its session stopped.
            RunnerError: Spark ended the run.
        """
        function.check_call(main, kwargs)
        _check_on_driver()
        packed = function.pack(main, kwargs)
        bar = ProgressBar() if is_watched() else ProgressLines()
        self.mlflow_run_id = None
        tracked: TrackedRun | None = None
        ended_by: BaseException | None = None
        try:
            tracked = self._open_run()
            self.mlflow_run_id = None if tracked is None else tracked.run_id
            # First what is kept, then what is shown.
            gang = self._gang(packed, [bar] if tracked is None else [tracked, bar])
            if tracked is not None:
                tracked.describe(
                    num_proc=self.num_proc,
                    backend=self.backend.name,
                    settings=self.config.chosen(),
                    converters=converters_in(function.ingredients(main, kwargs)),
                    application_id=gang.application_id,
                )
            return self._run_attempts(gang, tracked)
        except BaseException as error:
            ended_by = error
            raise
        finally:
            bar.close()
            if tracked is not None:
                tracked.close(ended_by)

    def gather(self, main: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Runs ``main(**kwargs)`` as ``run`` does, and returns what it returned in every rank.

        Args:
            main: The function.
            **kwargs: Its arguments.

        Returns:
            The values of all ranks, in the order of ranks. They travel as rank 0's does: keep
            them small.

        Raises:
            Exception: What ``run`` raises.
        """
        function.check_call(main, kwargs)
        values: list[Any] = self.run(function.on_each_rank(main), **kwargs)
        return values

    def _open_run(self) -> TrackedRun | None:
        """Opens the MLflow run, where one is wanted."""
        wanted = self.config.tracking
        if wanted is False or (wanted is None and not is_set_up()):
            return None
        # Only now: it is of use to those who track.
        from sparkdl_runner.tracking.run.tracked_run import TrackedRun

        return TrackedRun.open(wanted if isinstance(wanted, Tracking) else Tracking())

    def _run_attempts(self, gang: _Gang, tracked: TrackedRun | None) -> Any:
        first_attempt = 0 if tracked is None else tracked.first_attempt
        restarts = Restarts(self.config, first_attempt=first_attempt)
        while True:
            ticket = None
            if tracked is not None:
                tracked.begin_attempt(restarts.attempt)
                ticket = tracked.ticket(single_host=gang.is_single_host)
            try:
                value = gang.attempt(restarts.attempt, restarts.count > 0, ticket)
            except BaseException as error:
                if tracked is not None:
                    tracked.end_attempt(error)
                if not isinstance(error, RunnerError):
                    raise
                restarts.wait_or_raise(error)
            else:
                if tracked is not None:
                    tracked.end_attempt(None)
                return value

    def _gang(self, packed: bytes, reports: Sequence[Reports]) -> _Gang:
        """Checks all that can be checked before ranks start. Returns what runs one attempt."""
        run = time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:8]
        if self.num_proc < 0:
            local_launcher.check_cores(-self.num_proc)
            self.backend.check_installed()

            def attempt_here(attempt: int, is_restart: bool, ticket: RunTicket | None) -> Any:
                return _value(
                    local_launcher.launch(
                        num_proc=-self.num_proc,
                        backend=self.backend.name,
                        function=packed,
                        config=self.config,
                        run=run,
                        attempt=attempt,
                        ticket=ticket,
                        reports=reports,
                    )
                )

            return _Gang(attempt=attempt_here, is_single_host=True, application_id=None)
        # Only now: without Spark, everything above must work.
        from sparkdl_runner.driver import (
            encryption,
            gpu_scheduling,
            slots,
            spark_context,
            spark_launcher,
        )

        context = spark_context.require_spark_context()
        if spark_context.is_single_host(context):
            self.backend.check_installed()
        encryption.check_encryption(context, self.backend.name, self.config)
        slots.check_allocation(context)
        profile = gpu_scheduling.rank_profile(context)

        wanted = self.num_proc

        def attempt_on_spark(attempt: int, is_restart: bool, ticket: RunTicket | None) -> Any:
            nonlocal wanted
            num_proc = slots.wait_for_slots(
                context,
                wanted,
                self.config,
                profile=profile,
                least=self.config.min_num_proc if is_restart else None,
            )
            wanted = wanted or num_proc  # 0 means all slots that there were at first
            return _value(
                spark_launcher.launch(
                    context,
                    num_proc=num_proc,
                    backend=self.backend.name,
                    function=packed,
                    config=self.config,
                    run=run,
                    attempt=attempt,
                    is_restart=is_restart,
                    profile=profile,
                    ticket=ticket,
                    reports=reports,
                )
            )

        return _Gang(
            attempt=attempt_on_spark,
            is_single_host=spark_context.is_single_host(context),
            application_id=context.applicationId,
        )


@dataclass(frozen=True, kw_only=True)
class _Gang:
    """What runs all ranks once, and where."""

    attempt: Callable[[int, bool, RunTicket | None], Any]
    """Called with the attempt's number, whether ranks are started again, and the MLflow run."""
    is_single_host: bool
    application_id: str | None


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


def _check_on_driver() -> None:
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


def _value(outcomes: list[Outcome]) -> Any:
    """What rank 0 returned, or each rank if that is wanted; raises what ended the ranks, if any."""
    cause = root_cause(outcomes)
    if cause is not None:
        raise to_error(cause, outcomes)
    returned = {one.world.rank: one for one in outcomes if one.status == RETURNED}
    if 0 not in returned:
        raise RunnerError("The ranks were stopped before rank 0 had returned its value.")
    show_notes(outcomes)
    value = function.unpack_result(returned[0].payload)
    if not isinstance(value, function.EachRanksValue):
        return value
    if len(returned) < returned[0].world.size:
        raise RunnerError("The ranks were stopped before all had returned their values.")
    packed = (returned[rank].payload for rank in range(1, len(returned)))
    return [value.value, *(function.unpack_result(one).value for one in packed)]
