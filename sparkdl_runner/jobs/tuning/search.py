"""One search: a parent run, and below it a run for each trial of the study."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.base.time_limits import called_after
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError, WorkerError
from sparkdl_runner.jobs.training import Training, mlflow_run, tracking_of
from sparkdl_runner.jobs.tuning.plots import log_plots
from sparkdl_runner.jobs.tuning.pruning import Pruning
from sparkdl_runner.jobs.tuning.settings import TuneSettings
from sparkdl_runner.jobs.tuning.study import open_study, storage_must_answer
from sparkdl_runner.launch.driver.calls.interruptible import WAKE_SECONDS
from sparkdl_runner.launch.driver.calls.spares import SPARE_SECONDS
from sparkdl_runner.launch.driver.connect import probe
from sparkdl_runner.launch.driver.spark import slots
from sparkdl_runner.launch.driver.spark.context import is_spark_connect
from sparkdl_runner.launch.driver.spark.task_shape import task_shape
from sparkdl_runner.tracking.entries import HIDDEN
from sparkdl_runner.tracking.run.opening.notebook_source import SOURCE_TAG
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.tracking.run.opening.store import make_default_store, open_store
from sparkdl_runner.tracking.run.parameters_and_tags import tell_best
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.training.description.described import pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARENT_ATTRIBUTE = "mlflow_run_id"
RUN_ATTRIBUTE = "run_id"
FAILURE_ATTRIBUTE = "failure"


class Search:
    """Runs the trials of a study, and keeps what was best in the parent run.

    Args:
        settings: Of the job.
        training: What a trial runs.

    Raises:
        ConfigError: As of ``open_study``.
    """

    def __init__(self, settings: TuneSettings, training: Training) -> None:
        self._settings = settings
        self._training = training
        self._tracking = settings.wanted_tracking or Tracking()
        self._at_once = self._parallel()
        self._study = open_study(
            settings.tune, in_parallel=self._at_once > 1, lost=self._end_lost_run
        )
        self._parent_id = ""
        self._stopping = threading.Event()
        self._running: set[Pruning] = set()
        self._lock = threading.Lock()

    def run(self) -> dict[str, Any]:
        """Runs the trials that the study still lacks. Returns what was best.

        Raises:
            RunnerError: All trials failed, one could not be started, or the storage is gone.
        """
        with self._parent_run(), storage_must_answer(self._settings.tune, self._parent_id):
            left = self._settings.tune.trials - self._num_done()
            print(
                f"{left} trials, {self._at_once} at a time, below run {self._parent_id}", flush=True
            )
            with called_after(self._settings.tune.time_limit_seconds, self._end_in_time):
                self._run_trials(left)
            return self._keep_best()

    @contextmanager
    def _parent_run(self) -> Iterator[None]:
        """The run of the study: a new one, or that of an earlier search."""
        import mlflow

        # Trials will be where their function chooses, and MLflow shows none below a run elsewhere.
        self._tracking = tracking_of(self._settings, self._training.work)
        search, tracking = self._settings.tune, self._tracking
        make_default_store(tracking)
        if tracking.experiment is not None:
            mlflow.set_experiment(tracking.experiment)
        earlier = self._study.user_attrs.get(PARENT_ATTRIBUTE)
        if earlier is not None:
            mlflow.start_run(run_id=earlier)
        else:
            of_work = self._training.work.run_name
            name = RunName(text=f"tune {of_work.text}" if of_work is not None else "tune")
            source = (
                {} if of_work is None or of_work.source is None else {SOURCE_TAG: of_work.source}
            )
            mlflow.start_run(
                run_name=tracking.run_name or name.in_store(open_store(tracking)),
                tags={**source, **tracking.tags},
            )
            mlflow.log_params({"metric": search.metric, "direction": search.direction})
        active = mlflow.active_run()
        assert active is not None  # noqa: S101
        self._parent_id = active.info.run_id
        try:
            self._study.set_user_attr(PARENT_ATTRIBUTE, self._parent_id)
            space = search.model_dump(include={"search_space"}, exclude_unset=True)["search_space"]
            mlflow.set_tag(f"{HIDDEN}search_space", json.dumps(space))
            mlflow.set_tag("sparkdl_runner.trials", search.trials)
            yield
        except BaseException as error:
            is_cancelled = isinstance(error, (KeyboardInterrupt, RunCancelledError))
            mlflow.end_run("KILLED" if is_cancelled else "FAILED")
            raise
        mlflow.end_run()

    def _parallel(self) -> int:
        """How many trials run at once. Where ranks are processes of this host, one."""
        wanted, spark = self._settings.tune.parallel, self._training.spark
        if spark is None or self._settings.num_proc <= 0:
            return 1
        fit = self._count_places(spark) // self._settings.num_proc
        return max(1, fit if wanted == "auto" else min(fit, wanted))

    def _count_places(self, spark: SparkSession) -> int:
        if is_spark_connect():
            return probe.slots_of(spark)
        config = self._settings.run_config.build()
        shape = task_shape(spark.sparkContext, config, self._settings.num_proc)
        return slots.count_places(spark.sparkContext, shape)

    def _end_lost_run(self, study: Any, trial: Any) -> None:
        """Ends the MLflow run of a trial whose driver was lost."""
        import mlflow

        client = mlflow.MlflowClient()
        parent = client.get_run(study.user_attrs[PARENT_ATTRIBUTE])
        left = (
            f"tags.`mlflow.parentRunId` = '{parent.info.run_id}' AND attributes.status = 'RUNNING'"
        )
        for run in client.search_runs([parent.info.experiment_id], left):
            # Those of earlier versions are called by their number alone.
            if (run.info.run_name or "").removesuffix(")").endswith(name_of(trial)):
                client.set_terminated(run.info.run_id, "KILLED")

    def _num_done(self) -> int:
        """Trials that count. One whose driver was lost is tried again, and does not."""
        from optuna.trial import TrialState

        counts = (TrialState.COMPLETE, TrialState.PRUNED)
        return sum(
            trial.state in counts or FAILURE_ATTRIBUTE in trial.user_attrs
            for trial in self._study.get_trials(deepcopy=False)
        )

    def _end_in_time(self) -> None:
        """Ends the search, and the trials that still run."""
        seconds = self._settings.tune.time_limit_seconds
        reason = f"The search has reached its time limit of {seconds:g} s."
        print(reason, flush=True)
        self._stopping.set()
        with self._lock:
            for pruning in self._running:
                pruning.end(reason)

    def _run_trials(self, number: int) -> None:
        if self._at_once == 1:
            for _ in range(number):
                self._run_trial()
            return
        assert self._training.spark is not None  # noqa: S101 - there are slots
        begin, cancel = _job_group(self._training.spark, self._parent_id)
        with ThreadPoolExecutor(self._at_once, "sparkdl-tune", initializer=begin) as pool:
            running = [pool.submit(self._run_trial) for _ in range(number)]
            try:
                left = set(running)
                while left:
                    ended, left = wait(left, WAKE_SECONDS, FIRST_COMPLETED)
                    for future in ended:
                        future.result()
            except BaseException:
                self._stopping.set()
                # A trial may submit its job only after the first call.
                while wait(running, timeout=1).not_done:
                    cancel()
                raise

    def _run_trial(self) -> None:
        """Runs a trial; one that fails counts as failed, and the search goes on."""
        if not self._stopping.is_set():
            # Optuna keeps the trial's end, and a heartbeat by which a lost driver is noticed.
            self._study.optimize(self._trial, n_trials=1, catch=(_TrialFailedError,))

    def _trial(self, trial: Any) -> float:
        import optuna

        search = self._settings.tune
        drawn = {name: choice.draw(trial, name) for name, choice in search.search_space.items()}
        # MLflow keeps a thread's own active run, so a trial in another thread must name its parent.
        tags = {**self._tracking.tags, "mlflow.parentRunId": self._parent_id}
        run_name = f"{pairs(drawn)} ({name_of(trial)})"
        tracking = dataclasses.replace(self._tracking, run_name=run_name, tags=tags)
        label = f"{name_of(trial)} with {drawn}"
        pruning = Pruning(trial, search.metric)
        with self._lock:
            self._running.add(pruning)
        try:
            hyperparameters = {**self._settings.hyperparameters, **drawn}
            value, run_id = self._training.run(
                hyperparameters, tracking, [pruning], spare_seconds=SPARE_SECONDS
            )
            metric = self._metric(value, run_id)
            failure = f"{search.metric} is nan" if math.isnan(metric) else None
        except RunCancelledError as error:
            if pruning.error is not None:
                raise pruning.error from None
            if pruning.pruned_at is None and not self._stopping.is_set():
                raise
            print(f"{label} ended: {error}", flush=True)
            raise (
                optuna.TrialPruned if pruning.pruned_at is not None else _TrialFailedError
            ) from None
        except LaunchError as error:
            if self._num_done():
                raise RunnerError(f"Trial {trial.number} could not be started. {error}") from error
            raise
        except WorkerError as error:
            failure = first_line(error)[:300]
        finally:
            with self._lock:
                self._running.discard(pruning)
        if failure is not None:
            trial.set_user_attr(FAILURE_ATTRIBUTE, failure)
            print(f"{label} failed: {failure}", flush=True)
            raise _TrialFailedError
        trial.set_user_attr(RUN_ATTRIBUTE, run_id)
        print(f"{label}: {search.metric} {metric:.6g}", flush=True)
        return metric

    def _metric(self, value: Any, run_id: str | None) -> float:
        """The trial's metric: returned by name, else logged, else the number that was returned.

        Raises:
            RunnerError: It is neither.
        """
        import mlflow

        name = self._settings.tune.metric
        if isinstance(value, Mapping) and (number := number_of(value.get(name))) is not None:
            return number
        logged = mlflow.MlflowClient().get_run(run_id).data.metrics
        if name in logged:
            return float(logged[name])
        if (number := number_of(value)) is not None:
            return number
        raise RunnerError(
            f"The training returned a value of type {type(value).__name__} without {name!r}, and "
            f"its run {run_id} has no such metric{did_you_mean(name, logged)} Return it from the "
            "function, or log it."
        )

    def _keep_best(self) -> dict[str, Any]:
        import mlflow

        name, mlflow_settings = self._settings.tune.metric, self._settings.tracking
        try:
            best = self._study.best_trial
        except ValueError:
            raise RunnerError("No trial has ended with a value; what each said is above.") from None
        run_id = best.user_attrs[RUN_ATTRIBUTE]
        mlflow.log_metric(name, best.value)
        # Tags: a later search of the study may find better ones, and parameters never change.
        mlflow.set_tags({f"best.{key}": value for key, value in best.params.items()})
        mlflow.set_tag("sparkdl_runner.best_run_id", run_id)
        summary = f"{name} {best.value:.6g} with {pairs(best.params)} ({name_of(best)})"
        tell_best(mlflow.MlflowClient(), self._parent_id, summary)
        log_plots(self._study)
        print(f"best: trial {best.number}, {name} {best.value:.6g}, {best.params}, run {run_id}")
        if mlflow_settings and mlflow_settings.registered_model_name is not None:
            mlflow_run.register(
                run_id, mlflow_settings.registered_model_name, mlflow_settings.alias
            )
        found = {"trial": best.number, "value": best.value, "params": best.params, "run_id": run_id}
        return {"run_id": self._parent_id, "metric": name, "best": found}


def _job_group(spark: SparkSession, parent_id: str) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Two functions: one puts the calling thread's jobs into a group, one cancels the group."""
    if is_spark_connect():  # Its queries have threads of their own.
        return (lambda: None), spark.interruptAll
    context, group = spark.sparkContext, f"tune-{parent_id}"

    def begin() -> None:
        context.setJobGroup(group, f"trials of {parent_id}", interruptOnCancel=True)

    return begin, partial(context.cancelJobGroup, group)


def name_of(trial: Any) -> str:
    """A trial's name. Its MLflow run has it at the end of its own, after the values drawn."""
    return f"trial {trial.number}"


class _TrialFailedError(Exception):
    """A trial has failed, as has been said; the search goes on."""


def number_of(value: Any) -> float | None:
    """A number of Python's or NumPy's, or a tensor that holds one; None of anything else."""
    value = value.item() if getattr(value, "shape", None) == () else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None
