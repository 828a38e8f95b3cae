"""Makes the pictures of MLflow's pages in ``docs/tracking.md``: ``python docs/mlflow_pages.py``.

Trains as the pages say, on this machine, and looks at a real server with Chromium. Needs Java for
the estimator, and chromium with its driver.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.tracking import Tracking

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))
EPOCHS, STEPS = 4, 20
WIDTH, HEIGHT = 1250, 1000
SETTLE_SECONDS = 2
ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'
# MLflow 3 opens as for language models.
MODEL_TRAINING = """
[...document.querySelectorAll('*')].filter(
    one => !one.children.length && one.textContent === 'Model training'
)[0].click()
"""
SEARCH = """
function: mlflow_pages:train
num_proc: -2
mlflow: {{experiment: digits, tracking_uri: "{uri}"}}
hyperparameters: {{epochs: 2}}
checkpoint_url: {folder}
tune:
  metric: loss
  direction: minimize
  trials: 3
  sampler: {{class: optuna.samplers:RandomSampler, seed: 7}}
  search_space: {{lr: {{low: 0.01, high: 0.5, log: true}}, layers: {{choices: [1, 2]}}}}
"""


def train(
    checkpoint_url: str, epochs: int = EPOCHS, lr: float = 0.1, layers: int = 1, ends: str = ""
) -> float:
    """Trains on handwritten digits, and ends badly on rank 1 where that is asked for."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    world = current_world()
    pixels, labels = (torch.as_tensor(one) for one in load_digits(return_X_y=True))
    hidden = [torch.nn.Linear(64, 64), torch.nn.ReLU()] * (layers - 1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*hidden, torch.nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with CheckpointManager(checkpoint_url, every_steps=STEPS) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        for step in range(restored.step + 1 if restored else 1, epochs * STEPS + 1):
            rows = torch.arange(step, step + 1700, 20)[world.rank :: world.size]
            loss = torch.nn.functional.cross_entropy(model(pixels[rows].float() / 16), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.05)
            log_metrics(step, loss=loss, samples=len(rows), total_steps=epochs * STEPS)
            if step % STEPS == 0:
                right = (model(pixels.float() / 16).argmax(1) == labels).double().mean()
                log_metrics(step, accuracy=right, epoch=step // STEPS)
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer)
            if step == 50 and world.rank == 1 and world.attempt == 0 and ends == "raises":
                raise ValueError("image 1,203 has 63 pixels; expected 64")
            if step == 50 and world.rank == 1 and world.attempt == 0 and ends == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
    return loss.item()


def runs(uri: str, folder: Path) -> dict[str, Callable[[], str | None]]:
    """For each picture, the function that makes its MLflow run and returns the run's id."""

    def call(ends: str = "", **settings: Any) -> str | None:
        tracking = Tracking(tracking_uri=uri, experiment="digits")
        config = RunConfig(tracking=tracking, restart_backoff_seconds=0, **settings)
        runner = DistributedRunner(num_proc=-2, run_config=config)
        with suppress(RunnerError):
            runner.run(train, checkpoint_url=tempfile.mkdtemp(dir=folder), ends=ends)
        return runner.mlflow_run_id

    return {
        "failed": functools.partial(call, "raises"),
        "restarted": functools.partial(call, "is killed", max_restarts=1),
        "named": functools.partial(call, name="digits-nightly"),
        "tuned": functools.partial(tuned, uri, folder),
        "estimator": functools.partial(estimated, uri),
    }


def tuned(uri: str, folder: Path) -> str:
    """Runs a search, and returns the id of the run above its trials."""
    import mlflow

    config = folder / "tune.yaml"
    config.write_text(SEARCH.format(uri=uri, folder=folder))
    command = [sys.executable, "-m", "sparkdl_runner", "tune", "--config", str(config)]
    subprocess.run(command, check=True, cwd=FOLDER)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    named = "attributes.run_name = 'tune train-1'"
    return str(client.search_runs([experiment.experiment_id], named)[0].info.run_id)


def estimated(uri: str) -> str | None:
    """Searches with Spark's CrossValidator, and returns the id of the best model's run."""
    import mlflow
    import torch
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
    from pyspark.sql import SparkSession
    from sklearn.datasets import load_digits

    from sparkdl_runner.estimator import TorchEstimator

    os.environ["PYSPARK_PYTHON"] = sys.executable
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("digits")
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    pixels, labels = load_digits(return_X_y=True)
    table = list(zip((pixels / 16).tolist(), labels.tolist(), strict=True))
    digits = spark.createDataFrame(table, "features array<float>, label long")
    estimator = TorchEstimator(
        num_proc=2,
        model=torch.nn.Linear(64, 10),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        epochs=3,
    )
    rates = [functools.partial(torch.optim.SGD, lr=rate) for rate in (0.01, 0.5)]
    search = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.optimizer, rates).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
    )
    best = search.fit(digits).bestModel
    spark.stop()
    return best.run_id


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A tracking server on this host, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = f"sqlite:///{folder}/mlflow.db"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--workers", "1"]
    process = subprocess.Popen([*command, "--port", str(port)], start_new_session=True)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None:
                raise SystemExit("The tracking server has ended; what it said is above.")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def main(wanted: list[str]) -> None:
    """Makes the pictures whose names are given; all of them if none is."""
    from browser import Browser

    folder = Path(tempfile.mkdtemp())
    browser = Browser(folder, width=WIDTH, height=HEIGHT)
    try:
        with server(folder) as url:
            browser.open(url)
            browser.wait_for("Model training")
            browser.run(MODEL_TRAINING)
            for name, run in runs(url, folder).items():
                if name in wanted or not wanted:
                    look(browser, f"{url}/#/experiments/1/runs/{run()}", "Overview", name)
            look(browser, f"{url}/#/experiments/1/runs", "Run Name", "runs")
    finally:
        browser.close()
        shutil.rmtree(folder)


def look(browser: Any, page: str, words: str, name: str) -> None:
    """Makes a picture of a page that shows some words."""
    from PIL import Image

    browser.open(page)
    browser.wait_for(words)
    time.sleep(SETTLE_SECONDS)
    browser.click_if_there(ASSISTANT)
    time.sleep(SETTLE_SECONDS)
    picture = Image.open(browser.picture(name)).convert("RGB").quantize(64)
    picture.save(FOLDER / f"mlflow-{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
