"""The tune job: trainings with different hyperparameters, each a run below one parent run."""

from __future__ import annotations

from typing import Any

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing.command import Command
from sparkdl_runner.jobs.training import prepared
from sparkdl_runner.jobs.tuning.search import Search
from sparkdl_runner.jobs.tuning.settings import TuneSettings


def run(settings: TuneSettings) -> dict[str, Any]:
    """Searches, and says what was found."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tune needs optuna on the driver: run pip install 'sparkdl-runner[jobs]'."
        ) from None
    also = {name: choice.examples for name, choice in settings.tune.search_space.items()}
    with prepared(settings, also) as training:
        return Search(settings, training).run()


JOB = Command(
    name="tune",
    summary="Search for good hyperparameters; every trial is a training and a run of its own.",
    example="""
        for example:
          sparkdl-runner tune --config tune.yaml
          sparkdl-runner tune --config tune.yaml --np 4 --tune trials=50

        tune.yaml is a train.yaml (see sparkdl-runner train --help) and:
          tune:
            metric: accuracy              # a key of what the function returns, or an MLflow metric
            direction: maximize
            trials: 20
            parallel: auto                # as many as there are slots for
            seed: 1
            pruner: {class: optuna.pruners:MedianPruner}   # ends bad trials early
            storage: sqlite:///study.db   # the same call again goes on with the study
            study_name: digits
            search_space:
              learning_rate: {low: 1e-4, high: 1e-1, log: true}
              batch_size: {choices: [16, 32, 64]}
              epochs: {low: 5, high: 20, step: 5}
    """,
    settings=TuneSettings,
    run=run,
)
