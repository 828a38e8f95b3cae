"""``DistributedRunner``: runs a function as N ranks and returns what rank 0 returned."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.renamed import renamed
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.version import __version__
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.agent.worker_environment import (
    driver_search_path,
    driver_variables,
    own_files,
)
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.call import Call, check_call
from sparkdl_runner.launch.driver.calls.checks import ranks_asked
from sparkdl_runner.launch.driver.calls.run_future import LatestProgress, RunFuture
from sparkdl_runner.launch.driver.calls.spares import spare_seconds
from sparkdl_runner.launch.driver.launcher import Launcher
from sparkdl_runner.launch.driver.live_page import live_page
from sparkdl_runner.launch.driver.local_launcher import LocalLauncher
from sparkdl_runner.launch.driver.mlflow_run import (
    named_run,
    open_run,
    secrets_for_ranks,
    wanted_tracking,
    watched,
)
from sparkdl_runner.launch.driver.preflight import before_training, preflight
from sparkdl_runner.launch.driver.restarts import run_with_restarts
from sparkdl_runner.launch.driver.spark.context import is_spark_connect
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.function import on_each_rank
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.tracking.report.events import events_to
from sparkdl_runner.tracking.report.progress_bar import ProgressBar, is_watched
from sparkdl_runner.tracking.report.progress_lines import ProgressLines
from sparkdl_runner.tracking.report.slow_ranks import SlowRanks
from sparkdl_runner.tracking.run.opening.run_name import RunName

P = ParamSpec("P")
T = TypeVar("T")


class DistributedRunner:
    """Runs a Python function as allreduce ranks, in a barrier stage of Spark or on this host.

    Args:
        num_proc: How many ranks. Positive: that many barrier tasks of the running Spark
            application, one slot each. Negative: ``-num_proc`` processes on this host, with
            neither Spark nor Java, and at most 8 for each of its cores. 0: as many as the
            cluster has slots. Two numbers, ``(2, 8)``: 8, or as few as 2 where slots are missing
            or hosts are lost; the run grows at a checkpoint once slots are there again.
        backend: ``"torch"`` (the function calls ``torch.distributed.init_process_group()``) or
            ``"horovod"`` (the function calls ``hvd.init()``).
        driver_log_verbosity: As in ``RunConfig``, whose value is taken if this is None.
        run_config: All further settings.

    Raises:
        TypeError: ``num_proc`` is neither an int nor two, or ``run_config`` no RunConfig.
        ValueError: There is no such backend or verbosity, or there are fewer ranks than
            ``run_config.min_num_proc``.

    Example:
        >>> runner = DistributedRunner(num_proc=-2)
        >>> runner.run(train, "digits", epochs=3)  # doctest: +SKIP
    """

    @renamed(config="run_config")
    def __init__(
        self,
        *,
        num_proc: int | tuple[int, int],
        backend: str = "torch",
        driver_log_verbosity: str | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self.num_proc, self.run_config = ranks_asked(num_proc, run_config)
        self.backend = get_backend(backend)
        if driver_log_verbosity is not None:
            self.run_config = replace(self.run_config, driver_log_verbosity=driver_log_verbosity)
        self.mlflow_run_id: str | None = None
        """The MLflow run of the last call of ``run``; None if it had none."""
        self.run_name: RunName | None = None
        """How to call MLflow runs that have no name; None: after the function, with a number."""
        self._stops: list[StopRequest] = []
        self.reports: list[Reports] = []
        """Further receivers of the ranks' reports, besides the MLflow run and the screen."""

    def run(self, main: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``main(*args, **kwargs)`` in every rank and waits for all of them.

        Args:
            main: The function. It travels by value if it was defined in a notebook or a script,
                by name if it comes from an installed module.
            *args: Its arguments by position.
            **kwargs: Its arguments by name.

        Returns:
            What ``main`` returned in rank 0. For a training with a name that has finished
            before, the value that its run keeps as JSON; None if JSON could not hold it.

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
        return cast(T, self._run(Call.of(main, args, kwargs), StopRequest(), ()))

    def submit(self, main: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> RunFuture[T]:
        """Starts what ``run`` runs, and returns at once. Several may run side by side.

        On Spark each takes its own slots, and waits for them where they are busy. A run ends with
        this process at the latest.

        Args:
            main: The function.
            *args: Its arguments by position.
            **kwargs: Its arguments by name.

        Returns:
            Its future: a ``concurrent.futures.Future`` whose ``cancel()`` ends all ranks within
            seconds, and whose ``progress`` says how far rank 0 is.

        Raises:
            TypeError: ``main`` cannot be called, or not with these arguments.
            NotPicklableError: The function or an argument cannot travel.
            LaunchError: This is not the driver. The future has what ``run`` raises later.
        """
        call, stop, latest = Call.of(main, args, kwargs), StopRequest(), LatestProgress()
        future: RunFuture[T] = RunFuture(stop, latest)

        def made() -> T:
            return cast(T, self._run(call, stop, [latest]))

        if self.num_proc >= 0 and is_spark_connect():
            from sparkdl_runner.launch.driver.connect.session import in_this_session

            future.start(in_this_session(made))
        else:
            future.start(made)
        return future

    def run_script(
        self,
        script: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        module: bool = False,
        files: Sequence[str] = (),
    ) -> None:
        """Runs a script in every rank, as ``torchrun [-m] script.py ARGS`` does.

        ``__name__``, ``__file__``, ``sys.argv`` and ``sys.path[0]`` are as under ``python``. Ranks
        of this host run the script where it is. To ranks on Spark its folder travels, at most
        64 MiB: Python files at any depth, and what ``files`` names. There they lie in a folder of
        the rank's own, which is the working folder and is deleted at the end. ``.git``, virtual
        environments, ``__pycache__`` and files of secrets stay behind.

        Args:
            script: The script's path; or the name of a module, which is looked for in the working
                folder and on the search path. Of one that is installed nothing travels.
            args: The script's arguments, all of them texts.
            module: Whether ``script`` is the name of a module.
            files: Patterns of files and folders below the script's folder that travel too, such as
                ``"*.yaml"`` or ``"data/"``.

        Raises:
            TypeError: An argument is no text.
            ValueError: A pattern of ``files`` matches nothing.
            LaunchError: The script is not there, is no Python, or its folder cannot travel; or the
                ranks cannot be started.
            WorkerFailedError: The script raised in a rank, or ended with an exit code other than 0:
                then its ``__cause__`` is a ``ScriptExitedError``.
            RunnerError: As of ``run``.
        """
        found = Script.find(script, args, module=module, files=files, travels=self.num_proc >= 0)
        if summary := found.summary():
            tell(f"{summary}.")
        self._run(Call.of(found, (), {}), StopRequest(), ())

    def _run(self, call: Call, stop: StopRequest, reports: Sequence[Reports]) -> Any:
        self.mlflow_run_id = None
        name = self.run_name or RunName(text=call.run_name)
        settings = wanted_tracking(self.run_config, call, name)
        named = named_run(self.run_config, settings, call)
        if named is not None and named.is_finished:
            self.mlflow_run_id = named.run_id
            return named.returned(call.arguments, call.conversions)
        bar = ProgressBar() if is_watched() else ProgressLines()
        secrets = secrets_for_ranks(self.run_config.environment)
        with open_run(settings, named, stop, secrets, name) as tracked, closing(bar):
            self.mlflow_run_id = None if tracked is None else tracked.run_id
            launcher = self._launcher(stop)
            if self.num_proc >= 0 and is_spark_connect() and not launcher.is_single_host:
                _refuse_unseen(call.conversions.values())
            if tracked is not None:
                tracked.describe(
                    arguments=call.arguments,
                    settings={
                        "num_proc": self.num_proc,
                        "backend": self.backend.name,
                        **self.run_config.chosen(),
                    },
                    converters=call.conversions,
                    application_id=launcher.application_id,
                )
            first = 0 if tracked is None else tracked.first_attempt
            attempt = self._attempt(call.packed, first)
            self._stops.append(stop)
            try:
                with (
                    self._events(attempt.run, secrets) as events,
                    stop.after(self.run_config.time_limit_seconds),
                    watched(tracked, stop),
                    live_page(self.run_config.live_page, tracked, name.text, secrets, stop) as live,
                ):
                    shown = [*live, bar, *self.reports, *reports, *events]
                    told = shown if tracked is None else [tracked, *shown]
                    shown += self._slow_ranks(told, stop)
                    if self.run_config.preflight is not None:
                        earlier = () if tracked is None else tracked.earlier_rates()
                        before_training(launcher, attempt, told, stop, earlier)
                    value = run_with_restarts(launcher, attempt, tracked, shown, stop)
                # A training that was asked to end early continues when it is called again.
                if tracked is not None and named is not None and not stop.reason:
                    tracked.keep_value(value)
                return value
            finally:
                self._stops.remove(stop)

    def preflight(self) -> dict[str, Any]:
        """Has the ranks measure their hosts, as ``RunConfig.preflight`` says, and trains nothing.

        Returns:
            The measurements and the findings; docs/clusters.md describes them.

        Raises:
            RunnerError: As of ``run``.
        """
        stop = StopRequest()
        return preflight(self._launcher(stop), self._attempt(b"", 0), stop)

    def _attempt(self, function: bytes, number: int) -> AttemptSpec:
        return AttemptSpec(
            backend=self.backend.name,
            function=function,
            config=self.run_config,
            run=time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:8],
            number=number,
            search_path=tuple(driver_search_path()),
            driver_files=own_files(),
            variables=driver_variables(self.run_config.environment),
            spare_seconds=spare_seconds(self.run_config),
        )

    def _events(self, run: str, secrets: Sequence[str]) -> AbstractContextManager[list[Reports]]:
        """Who tells programs of the run; see ``events_to``."""
        if self.run_config.events is None:
            return nullcontext([])
        from sparkdl_runner.tracking.run.rank_reports import RankReports

        return events_to(
            self.run_config.events,
            Redactor([*secrets_of(), *secrets]),
            RankReports(),
            run,
            mlflow_run_id=self.mlflow_run_id,
            num_proc=self.num_proc,
            backend=self.backend.name,
            version=__version__,
        )

    def _slow_ranks(self, told: Sequence[Reports], stop: StopRequest) -> list[SlowRanks]:
        """Who names ranks that the others wait for, if that is wanted."""
        config = self.run_config

        def say(text: str, reason: str) -> None:
            tell(f"{text}.")
            for one in told:
                one.slow_ranks(text)
            if reason and config.slow_rank_stops:
                stop.make(reason)

        factor = config.slow_rank_factor
        return [] if factor is None else [SlowRanks(factor, config.slow_rank_steps, say)]

    def request_stop(self, reason: str = "asked for on the driver") -> None:
        """Asks the current run to end by itself; called in another thread than ``run``.

        ``should_stop`` then returns the reason, on all ranks at the same step. A function that
        never calls it goes on.

        Args:
            reason: Up to 200 bytes, which the function gets.

        Raises:
            RunnerError: Nothing is running.
            ValueError: The reason is empty or too long.
        """
        if not self._stops:
            raise RunnerError(
                "request_stop() was called while this runner runs nothing: call it in another "
                "thread while run() lasts."
            )
        for stop in list(self._stops):
            stop.make(reason)

    def gather(self, main: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Calls ``main`` as ``run`` does, and returns what it returned in every rank.

        Args:
            main: The function.
            *args: Its arguments by position.
            **kwargs: Its arguments by name.

        Returns:
            The values of all ranks, in the order of ranks. They travel as rank 0's does: keep
            them small.

        Raises:
            Exception: What ``run`` raises.
        """
        check_call(main, *args, **kwargs)
        # A run of each rank's value returns the list of all values.
        return cast(list[T], self.run(on_each_rank(main), *args, **kwargs))

    def _launcher(self, stop: StopRequest) -> Launcher:
        """Checks all that can be checked before ranks start."""
        if self.num_proc < 0:
            return LocalLauncher(-self.num_proc, self.backend)
        # Imported late: ranks of this host need no Spark.
        if is_spark_connect():
            from sparkdl_runner.launch.driver.connect.launcher import ConnectLauncher

            return ConnectLauncher(self.num_proc, self.backend, self.run_config, stop)
        from sparkdl_runner.launch.driver.spark.launcher import SparkLauncher

        return SparkLauncher(self.num_proc, self.backend, self.run_config)


def _refuse_unseen(converters: Iterable[Any]) -> None:
    """See ``data.convert.shared_folder``, which needs Spark."""
    from sparkdl_runner.data.convert import shared_folder
    from sparkdl_runner.launch.driver.connect.session import require_session

    shared_folder.refuse_unseen(require_session(), converters)
