"""Trains a network on handwritten digits, from a Spark DataFrame to a model in MLflow.

scikit-learn's 1797 digits become a Spark DataFrame and that a conversion, DistributedRunner trains
on the ranks' shards with Horovod or DistributedDataParallel, and one MLflow run keeps parameters,
data set, metrics, logs, a report and the model.

    python jobs/digits.py                              # starts Spark on this machine
    python jobs/digits.py --backend torch
    python jobs/digits.py --chaos                      # kills a rank half-way, and goes on
    spark-submit --master 'local[2]' jobs/digits.py
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from sparkdl_runner import DistributedRunner, RunConfig, RunnerError
from sparkdl_runner.examples import digits
from sparkdl_runner.importing import without_collecting
from sparkdl_runner.jobs.settings.quiet import quieten_libraries
from sparkdl_runner.jobs.spark.session import start_spark
from sparkdl_runner.redaction import Redactor
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.local_store import make_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkdl_runner.data import SparkDatasetConverter

# A JVM that lives for seconds gains nothing from its optimizing compiler, which takes more than a
# third of the processor time, nor from several threads that collect garbage.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULT_STORE = "sqlite:///mlflow.db"


class Phases:
    """The wall time of the job's phases; one ends where the next begins."""

    def __init__(self) -> None:
        self._start = self._mark = psutil.Process().create_time()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """Says that the phase called ``name`` ends now."""
        now = time.time()
        self.seconds[name] = now - self._mark
        self._mark = now

    @property
    def total(self) -> float:
        """Seconds from the start of this process to the end of the last phase."""
        return self._mark - self._start


def main() -> int:
    """Runs the job and returns its exit code."""
    phases = Phases()
    arguments = parse_arguments()
    quieten_libraries()
    # And nothing goes out to the network.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    phases.end("start Python")
    say(f"Starting Spark for {arguments.np} ranks")
    # MLflow takes as long to import as Java to start.
    importing = start(lambda: importlib.import_module("mlflow"))
    spark = start_spark("digits", slots=arguments.np, jvm_options=JVM_OPTIONS)
    importing.join()
    phases.end("start Spark")
    # Java converts, and meanwhile this process has time to import SQLAlchemy and to make tables.
    opening = start(lambda: open_store(arguments.tracking_uri))
    try:
        summary = convert_and_train(spark, arguments, phases, opening)
    except RunnerError as error:
        print(f"digits: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    phases.end("stop Spark")
    show({**summary, "seconds": phases.total}, phases)
    return 0


def start(action: Callable[[], object]) -> threading.Thread:
    """Does beside the rest what the runner would do; where that fails, the runner says why."""

    def attempt() -> None:
        with suppress(Exception), without_collecting():
            action()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    return thread


def open_store(tracking_uri: str) -> None:
    """Has MLflow import what its store needs, and make the tables of a new database."""
    if not tracking_uri.startswith("sqlite:///"):
        return  # Another may keep one waiting; the runner knows for how long it may.
    import mlflow

    if tracking_uri == absolute(DEFAULT_STORE):
        make_private(tracking_uri)

    mlflow.MlflowClient(tracking_uri=tracking_uri).get_experiment_by_name("digits")


def convert_and_train(
    spark: SparkSession, arguments: argparse.Namespace, phases: Phases, opening: threading.Thread
) -> dict[str, Any]:
    """Converts the digits, and trains on them in an MLflow run that the runner opens and ends."""
    say("Converting the digits")
    with converted_digits(spark) as (train_data, test_data), scratch() as folder:
        if arguments.batch_size * arguments.np > len(train_data):
            sys.exit(
                f"digits: {arguments.np} ranks with {arguments.batch_size} rows each need more "
                f"than the {len(train_data)} training rows in one step: lower --batch-size."
            )
        phases.end("convert")
        runner = DistributedRunner(
            num_proc=arguments.np,
            backend=arguments.backend,
            config=RunConfig(
                driver_log_verbosity="log_callback_only",
                tracking=Tracking(tracking_uri=arguments.tracking_uri, experiment="digits"),
                max_restarts=1,
                restart_backoff_seconds=1,
            ),
        )
        opening.join()
        say(f"Training with {arguments.backend} on {arguments.np} ranks, {len(train_data)} rows")
        train = {"horovod": digits.train_with_horovod, "torch": digits.train_with_torch}
        result = runner.run(
            train[arguments.backend],
            train_data=train_data,
            test_data=test_data,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            checkpoint_url=(folder / "checkpoints").as_uri(),
            chaos=arguments.chaos,
        )
        phases.end("launch, train and log")
    return {
        **result,
        "samples_per_second": logged_rate(runner.mlflow_run_id, arguments.tracking_uri),
        "backend": arguments.backend,
        "world_size": arguments.np,
        "run_id": runner.mlflow_run_id,
        "tracking_uri": Redactor()(arguments.tracking_uri),
    }


def logged_rate(run_id: str | None, tracking_uri: str) -> float:
    """Samples per second as the run's page has them, where the checkpoints' folder is forgotten."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=tracking_uri)
    run = client.get_run(run_id)
    for name in ("sparkdl_runner.checkpoint", "sparkdl_runner.checkpoint_step"):
        if name in run.data.tags:
            client.delete_tag(run_id, name)
    return float(run.data.metrics.get("samples_per_second", 0.0))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for checkpoints that all ranks see: here, they are all on this machine."""
    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        yield Path(folder)


@contextmanager
def converted_digits(
    spark: SparkSession,
) -> Iterator[tuple[SparkDatasetConverter, SparkDatasetConverter]]:
    """Converts the training and the test rows; the files exist as long as the context does."""
    from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter

    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, Path(folder).as_uri())
        parts = digits.frames(spark).values()
        train_data, test_data = (make_spark_converter(part) for part in parts)
        yield train_data, test_data


def say(what: str) -> None:
    """Tells a person what happens now."""
    print(f"{what} ...", flush=True)


def show(summary: dict[str, Any], phases: Phases) -> None:
    """Prints the result for a person and, as the last line, for a program."""
    uri = summary["tracking_uri"]
    print(f"\n{'phase':<18}{'seconds':>8}")
    for name, seconds in [*phases.seconds.items(), ("all", phases.total)]:
        print(f"{name:<18}{seconds:>8.1f}")
    print(f"\ntest accuracy  {summary['accuracy']:.4f}")
    print(f"samples/s      {summary['samples_per_second']:,.0f}\n")
    if not uri.startswith(("http://", "https://")):
        command = shlex.join([sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri])
        print(f"Open the MLflow UI with\n  {command}")
        print(f"and this run at\n  http://127.0.0.1:5000/#/runs/{summary['run_id']}")
    print("MLflow's list of runs is behind 'Model training', where it opens with 'GenAI'.\n")
    print(json.dumps(summary))


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits, as Spark ranks.")
    parser.add_argument("--backend", choices=("horovod", "torch"), default="horovod")
    parser.add_argument("--np", type=positive, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--epochs", type=positive, default=15, help="default: 15")
    parser.add_argument("--batch-size", type=positive, default=32, help="per rank (default: 32)")
    parser.add_argument(
        "--chaos", action="store_true", help="kill a rank half-way, and go on at its checkpoint"
    )
    parser.add_argument(
        "--tracking-uri",
        default=os.environ.get("MLFLOW_TRACKING_URI", DEFAULT_STORE),
        help="MLflow's store (default: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db)",
    )
    arguments = parser.parse_args()
    arguments.tracking_uri = absolute(arguments.tracking_uri)
    return arguments


def absolute(tracking_uri: str) -> str:
    """The store as ranks, and whoever reads the last line, name it from another folder."""
    if not tracking_uri.startswith("sqlite:///"):
        return tracking_uri
    return f"sqlite:///{Path(tracking_uri.removeprefix('sqlite:///')).resolve()}"


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
