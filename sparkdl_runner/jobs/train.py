"""The train job: someone's function, or an example, as ranks, in one MLflow run."""

from __future__ import annotations

from typing import Any

from sparkdl_runner.jobs.settings.command import Job, add_job
from sparkdl_runner.jobs.training import mlflow_run, prepared
from sparkdl_runner.jobs.training.settings import TrainSettings


def run(settings: TrainSettings) -> None:
    """Trains, and registers the model where that is asked for."""
    with prepared(settings) as training:
        value, run_id = training.run(settings.hyperparameters, settings.tracking)
    print(f"rank 0 returned {value!r}"[:2000], flush=True)
    if run_id is not None and settings.mlflow and settings.mlflow.registered_model_name:
        mlflow_run.register(run_id, settings.mlflow.registered_model_name, settings.mlflow.alias)


JOB = Job(
    name="train",
    summary="Run a training function as allreduce ranks on Spark, in one MLflow run.",
    example="""
        for example:
          train.py --example digits --num-proc 2 --backend torch
          train.py --function my_package.training:train --num-proc 8 --hyperparameters epochs=3
          train.py --config train.yaml --num-proc 16

        train.yaml:
          function: my_package.training:train
          backend: torch
          num_proc: 8
          data:
            train_data: /data/conversions/train          # read where it is
            test_data: {table: main.shop.test, columns: [features, label]}
          hyperparameters: {epochs: 3, batch_size: 64}
          checkpoint_url: /data/checkpoints              # each training has a folder in it
          runner: {max_restarts: 2}
          mlflow: {experiment: /Shared/shop, registered_model_name: shop, alias: champion}
    """,
    settings=TrainSettings,
    run=run,
)


def add_parser(subparsers: Any) -> None:
    """Adds this job to a command line that has several."""
    add_job(subparsers, JOB)
