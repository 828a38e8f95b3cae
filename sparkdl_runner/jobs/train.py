"""The train job: a function, a model or an example is trained by ranks, in one MLflow run."""

from __future__ import annotations

import json
from typing import Any

from sparkdl_runner.jobs.parsing.command import Command
from sparkdl_runner.jobs.training import mlflow_run, prepared
from sparkdl_runner.jobs.training.job_name import job_name
from sparkdl_runner.jobs.training.phases import Phases
from sparkdl_runner.jobs.training.settings import TrainSettings

_MOST_CHARACTERS = 2000


def run(settings: TrainSettings) -> dict[str, Any]:
    """Trains, and says how long it took and where its run is. The last line is JSON."""
    value, run_id, phases = train(named_after_its_job(settings))
    print(f"\n{phases}\n")
    uri = None if run_id is None else mlflow_run.show_page(run_id)
    summary = summarized(value, run_id, phases) | {"tracking_uri": uri}
    print(json.dumps(summary), flush=True)
    return summary


def summarized(value: object, run_id: str | None, phases: Phases) -> dict[str, Any]:
    """The result of a training, as ``--json`` prints it."""
    return {"run_id": run_id, "seconds": round(phases.total, 1), "returned": _short(value)}


def named_after_its_job(settings: TrainSettings) -> TrainSettings:
    """The settings with the name of a scheduler's job, unless the user gave one."""
    chosen = settings.name is not None or settings.resumed
    if chosen or not settings.wanted_tracking:
        return settings
    job = job_name(settings.model_dump(mode="json", exclude_unset=True))
    if job is None:
        return settings
    print(f"This training is called {job.name}, after its job.", flush=True)
    rerun = settings.rerun_finished or job.comes_again
    return settings.model_copy(update={"name": job.name, "rerun_finished": rerun})


def train(settings: TrainSettings) -> tuple[Any, str | None, Phases]:
    """Trains, prints what rank 0 returned, and registers the model where that is asked for.

    Returns:
        The value, the id of the MLflow run if there is one, and how long it took.
    """
    with prepared(settings) as training:
        value, run_id = training.run(settings.hyperparameters, settings.wanted_tracking)
        training.phases.end("train")
        if settings.script_place is None:
            print(f"rank 0 returned {value!r}"[:_MOST_CHARACTERS], flush=True)
        # Also of a training that has finished: the job may have died before this.
        if run_id and settings.tracking and settings.tracking.registered_model_name:
            name, alias = settings.tracking.registered_model_name, settings.tracking.alias
            mlflow_run.register(run_id, name, alias)
    training.phases.end("stop Spark")
    return value, run_id, training.phases


def _short(value: object) -> object:
    """The value, or None where it is large or nothing that JSON can hold."""
    try:
        return value if len(json.dumps(value)) <= _MOST_CHARACTERS else None
    except (TypeError, ValueError):
        return None


JOB = Command(
    name="train",
    summary="Train as allreduce ranks on Spark, in one MLflow run: by a function, or a model.",
    example="""
        for example:
          sparkdl-runner train --example digits --np 2 --backend torch
          sparkdl-runner train --function shop.training:train --np 8 --hyperparameters epochs=3
          sparkdl-runner train --script train.py --np 8 --args '[--epochs, "3"]'
          sparkdl-runner train --config train.yaml --np 16

        train.yaml:
          function: my_package.training:train
          backend: torch
          num_proc: 8
          data:
            train_data: /data/conversions/train          # read where it is
            test_data: {table: main.shop.test, columns: [features, label]}
          hyperparameters: {epochs: 3, batch_size: 64}
          checkpoint_url: /data/checkpoints              # each training has a folder in it
          run_config: {max_restarts: 2}
          tracking: {experiment: /Shared/shop, registered_model_name: shop, alias: champion}

        or, without a function:
          num_proc: 8
          data: {train_data: main.shop.orders}
          model: {class: my_package.models:Net, hidden: 64}  # its arguments beside its name
          loss: torch.nn.functional:cross_entropy
          optimizer: {class: torch.optim:Adam, lr: 1e-3}
          feature_cols: [features]
          label_cols: [label]
          validation: 0.1
          metrics:
            accuracy: {class: torchmetrics.classification:MulticlassAccuracy, num_classes: 10}
          epochs: 5
          tracking: {experiment: /Shared/shop, registered_model_name: shop}
    """,
    settings=TrainSettings,
    run=run,
)
