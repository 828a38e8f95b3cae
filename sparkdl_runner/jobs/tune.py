"""The tune job: trainings with different hyperparameters, each a run below one parent run."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any

from sparkdl_runner.cli.nearest import did_you_mean
from sparkdl_runner.driver.spark import slots
from sparkdl_runner.errors import (
    ConfigError,
    LaunchError,
    RunCancelledError,
    RunnerError,
    WorkerError,
)
from sparkdl_runner.jobs.settings.command import Job
from sparkdl_runner.jobs.training import Training, mlflow_run, prepared
from sparkdl_runner.jobs.tune_settings import TuneSettings
from sparkdl_runner.tracking.run.opening import make_default_store
from sparkdl_runner.tracking.settings import Tracking


def run(settings: TuneSettings) -> None:
    """Searches, and says what was found."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "tune needs optuna on the driver: run pip install 'sparkdl-runner[jobs]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = settings.tune
    also = {name: choice.examples for name, choice in search.search_space.items()}
    with prepared(settings, also) as training:
        study = optuna.create_study(
            direction=search.direction, sampler=optuna.samplers.TPESampler(seed=search.seed)
        )
        _Search(settings, training, study).run()


class _Search:
    """One search: a parent run, and below it a run for each trial."""

    def __init__(self, settings: TuneSettings, training: Training, study: Any) -> None:
        self._settings = settings
        self._training = training
        self._study = study
        self._tracking = settings.tracking or Tracking()
        self._parent_id = ""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Runs all trials, and keeps what was best in the parent run."""
        import mlflow

        search, tracking = self._settings.tune, self._tracking
        make_default_store(tracking)
        if tracking.experiment is not None:
            mlflow.set_experiment(tracking.experiment)
        parent = mlflow.start_run(run_name=tracking.run_name, tags=dict(tracking.tags))
        self._parent_id = parent.info.run_id
        try:
            mlflow.log_params(
                {"metric": search.metric, "direction": search.direction, "trials": search.trials}
            )
            space = search.model_dump(include={"search_space"}, exclude_unset=True)["search_space"]
            mlflow.set_tag("sparkdl_runner.search_space", json.dumps(space))
            self._run_trials(self._parallel())
            self._keep_best()
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
        fit = slots.count_slots(spark.sparkContext) // self._settings.num_proc
        return max(1, fit if wanted == "auto" else min(fit, wanted))

    def _run_trials(self, parallel: int) -> None:
        trials = self._settings.tune.trials
        print(f"{trials} trials, {parallel} at a time, below run {self._parent_id}", flush=True)
        if parallel == 1:
            for _ in range(trials):
                self._trial()
            return
        assert self._training.spark is not None  # noqa: S101 - there are slots
        context = self._training.spark.sparkContext
        group = f"tune-{self._parent_id}"

        def in_group() -> None:
            context.setJobGroup(group, f"trials of {self._parent_id}", interruptOnCancel=True)

        with ThreadPoolExecutor(parallel, "sparkdl-tune", initializer=in_group) as pool:
            running = [pool.submit(self._trial) for _ in range(trials)]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                self._stopping.set()
                # A trial may submit its job only after the first call.
                while wait(running, timeout=1).not_done:
                    context.cancelJobGroup(group)
                raise

    def _trial(self) -> None:
        """Runs one training; one that fails counts as a failed trial, and the search goes on."""
        import optuna

        if self._stopping.is_set():
            return
        search = self._settings.tune
        trial = self._study.ask()
        drawn = {name: choice.draw(trial, name) for name, choice in search.search_space.items()}
        # MLflow keeps a thread's own active run, so a trial in another thread must name its parent.
        tags = {**self._tracking.tags, "mlflow.parentRunId": self._parent_id}
        tracking = dataclasses.replace(self._tracking, run_name=f"trial {trial.number}", tags=tags)
        try:
            value, run_id = self._training.run(
                {**self._settings.hyperparameters, **drawn}, tracking
            )
            found = self._metric(value, run_id)
            failure = f"{search.metric} is nan" if math.isnan(found) else None
        except LaunchError as error:
            if any(one.state.is_finished() for one in self._study.trials):
                raise RunnerError(f"Trial {trial.number} could not be started. {error}") from error
            raise
        except WorkerError as error:
            failure = str(error).splitlines()[0][:300]
        if failure is not None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            print(f"trial {trial.number} with {drawn} failed: {failure}", flush=True)
            return
        trial.set_user_attr("run_id", run_id)
        self._study.tell(trial, found)
        print(f"trial {trial.number}: {search.metric} {found:.6g} with {drawn}", flush=True)

    def _metric(self, value: Any, run_id: str | None) -> float:
        """The trial's metric: returned by name, else logged, else the number that was returned.

        Raises:
            RunnerError: It is neither.
        """
        import mlflow

        name = self._settings.tune.metric
        if isinstance(value, Mapping) and (found := _number(value.get(name))) is not None:
            return found
        logged = mlflow.MlflowClient().get_run(run_id).data.metrics
        if name in logged:
            return float(logged[name])
        if (found := _number(value)) is not None:
            return found
        raise RunnerError(
            f"The training returned a value of type {type(value).__name__} without {name!r}, and "
            f"its run {run_id} has no such metric{did_you_mean(name, logged)} Return it from the "
            "function, or log it."
        )

    def _keep_best(self) -> None:
        import mlflow

        name, mlflow_settings = self._settings.tune.metric, self._settings.mlflow
        try:
            best = self._study.best_trial
        except ValueError:
            raise RunnerError("All trials have failed; what they said is above.") from None
        run_id = best.user_attrs["run_id"]
        mlflow.log_metric(name, best.value)
        mlflow.log_params({f"best.{key}": value for key, value in best.params.items()})
        mlflow.set_tag("sparkdl_runner.best_run_id", run_id)
        print(f"best: trial {best.number}, {name} {best.value:.6g}, {best.params}, run {run_id}")
        if mlflow_settings and mlflow_settings.registered_model_name is not None:
            mlflow_run.register(
                run_id, mlflow_settings.registered_model_name, mlflow_settings.alias
            )


def _number(value: Any) -> float | None:
    """A number of Python's or NumPy's, or a tensor that holds one."""
    value = value.item() if getattr(value, "shape", None) == () else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


JOB = Job(
    name="tune",
    summary="Search for good hyperparameters; every trial is a training and a run of its own.",
    example="""
        tune.yaml is a train.yaml (see train.py --help) and:
          tune:
            metric: accuracy              # a key of what the function returns, or an MLflow metric
            direction: maximize
            trials: 20
            parallel: auto                # as many as there are slots for
            seed: 1
            search_space:
              learning_rate: {low: 1e-4, high: 1e-1, log: true}
              batch_size: {choices: [16, 32, 64]}
              epochs: {low: 5, high: 20, step: 5}
    """,
    settings=TuneSettings,
    run=run,
)
add_parser = JOB.add_parser
