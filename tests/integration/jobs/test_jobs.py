"""Each job as it is called: what it makes and says, and what it refuses before anything runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from json_documents import document_of
from processes import wait_until_gone, workers
from sparkdl_runner.jobs import convert, score, train, tune
from sparkdl_runner.jobs.parsing import command

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
FUNCTION = """
def train(train_data, epochs, checkpoint_url=None):
    import mlflow
    import torch
    import torch.distributed as dist
    from sparkdl_runner import current_world

    dist.init_process_group("gloo")
    rows = 0
    with train_data.make_torch_dataloader(10, num_epochs=epochs, tail="uneven") as loader:
        for batch in loader:
            rows += len(batch["label"])
    total = torch.tensor(rows)
    dist.all_reduce(total)
    rows = int(total)
    if current_world().rank == 0:
        mlflow.log_metric("rows", rows)
    return {"rows": rows, "checkpoint_url": checkpoint_url}
"""


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment, path = dict(os.environ), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> str:
    return new_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    """A table of 100 rows."""
    spark.range(100).selectExpr(
        "array(cast(id as float), 1.0f) AS features", "cast(id % 2 AS long) AS label", "id"
    ).createOrReplaceTempView("digits_of_jobs")
    yield "digits_of_jobs"
    spark.catalog.dropTempView("digits_of_jobs")


def call(job: command.Command, *argv: object) -> int:
    return command.main(job, [str(one) for one in argv])


def runs(store: str, experiment: str) -> list[Any]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else client.search_runs([found.experiment_id])


def test_a_table_is_converted_and_trained_on_and_the_run_tells_it(
    spark: Any, table: str, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    converted = tmp_path / "converted"
    source = f"{{table: {table}, where: id < 50, columns: [features, label]}}"
    assert call(convert.JOB, "--source", source, "--output", converted) == 0
    assert "50 rows in " in capfd.readouterr().out
    assert call(convert.JOB, "--source", table, "--output", converted) == 2
    assert "already: choose another output, or --mode overwrite" in capfd.readouterr().err
    again = ("--source", source, "--output", converted, "--mode", "overwrite")
    assert call(convert.JOB, *again) == 0
    holding_nulls = tmp_path / "holding-nulls"
    spark.sql("SELECT if(id > 1, id, NULL) AS id FROM range(4)").write.parquet(str(holding_nulls))
    capfd.readouterr()
    assert call(convert.JOB, "--source", holding_nulls, *again[2:]) == 1
    assert "There are nulls in column 'id'" in capfd.readouterr().err
    # The earlier one is as it was, also as a source.
    copy = ("--source", f"{{path: {converted}, columns: [label]}}", "--output", tmp_path / "copy")
    assert call(convert.JOB, *copy, "--json") == 0
    assert document_of("convert", capfd.readouterr().out)["rows"] == 50

    (tmp_path / "shop_training.py").write_text(FUNCTION)
    config = tmp_path / "train.yaml"
    config.write_text(
        f"""
        function: shop_training:train
        backend: torch
        num_proc: 2
        data: {{train_data: {converted}}}
        hyperparameters: {{epochs: 1}}
        checkpoint_url: {tmp_path}/checkpoints
        tracking: {{experiment: shop, tracking_uri: {store}}}
        """
    )
    # To import torch takes most of a rank's time: of the second rank there is enough once.
    for epochs, ranks in ((1, 2), (2, 1)):
        arguments = ("--hyperparameters", f"epochs={epochs}", "--num-proc", ranks)
        assert call(train.JOB, "--config", config, *arguments) == 0
        assert f"'rows': {50 * epochs}" in capfd.readouterr().out
    second, first = runs(store, "shop")
    assert {second.info.status, first.info.status} == {"FINISHED"}
    assert second.data.metrics["rows"] == 100
    assert second.data.params["epochs"] == "2"
    urls = {run.data.tags["sparkdl_runner.checkpoint_url"] for run in (first, second)}
    assert len(urls) == 2, "a training must not go on where another has ended"
    assert all(url.startswith(f"file://{tmp_path}/checkpoints/training-") for url in urls)
    import mlflow

    text = mlflow.artifacts.load_text(f"{second.info.artifact_uri}/config.yaml")
    assert "shop_training:train" in text

    # The same run goes on in its own folder.
    resumed = ("--tracking", f"run_id={first.info.run_id}")
    assert call(train.JOB, "--config", config, "--num-proc", 1, *resumed) == 0
    assert first.data.tags["sparkdl_runner.checkpoint_url"] in capfd.readouterr().out
    # Also where it is not said that there are any, and the function insists on them.
    (tmp_path / "shop_strict.py").write_text(
        FUNCTION.replace("checkpoint_url=None", "checkpoint_url")
    )
    arguments = ("--function", "shop_strict:train", "--num-proc", 1, "--backend", "torch")
    more = ("--data", f"train_data={converted}", "--hyperparameters", "epochs=1")
    store_flag = f"tracking_uri={store}"
    assert call(train.JOB, *arguments, *more, "--tracking", store_flag) == 2
    assert "missing a required argument: 'checkpoint_url'" in capfd.readouterr().err
    assert call(train.JOB, *arguments, *more, "--tracking", store_flag, resumed[1]) == 0
    assert first.data.tags["sparkdl_runner.checkpoint_url"] in capfd.readouterr().out
    assert len(runs(store, "shop")) == 2


def test_a_table_that_is_no_conversion_is_converted_for_the_training(
    spark: Any, table: str, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_table.py").write_text(FUNCTION)
    arguments = ("--function", "shop_table.py:train", "--num-proc", 1, "--backend", "torch")
    cache = tmp_path / "cache"
    assert (
        call(
            *(train.JOB, *arguments, "--data", f"train_data={table}", "--cache-url", cache),
            *("--hyperparameters", "epochs=1"),
            *("--tracking", f"tracking_uri={store}", "experiment=table"),
        )
        == 0
    )
    assert "'rows': 100" in capfd.readouterr().out
    assert not list(cache.rglob("*.parquet")), "what was converted is deleted at the end"


@pytest.mark.one_lane
def test_without_spark_on_this_host(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.py").write_text("def pid():\n    import os\n    return os.getpid()\n")
    from sparkdl_runner.cli import main

    assert main(["run", "plain:pid", "--np", "-1", "--backend", "torch"]) == 0
    told = capfd.readouterr().out
    assert int(told.split()[-1]) != os.getpid()


REFUSED = [
    (convert, {"output": "{occupied}", "mode": "overwrite"}, "is no conversion (it has no _manif"),
    (score, {"output": "my-table"}, "'my-table' is no table's name"),
    (train, {"data": "train_data=digits_of_job"}, "there is no table digits_of_job; did you mean"),
    (train, {"data": "train_data=/nowhere/x"}, "There is no directory file:///nowhere/x."),
    (train, {"data": "train_data={table: digits_of_jobs, columns: [lable]}"}, "has no column 'lab"),
    (train, {"data": "train_dta=digits_of_jobs"}, "has no argument 'train_dta'; did you mean 'tr"),
    (train, {"hyperparameters": "epoch=1"}, "has no argument 'epoch'; did you mean 'epochs'?"),
    (train, {"function": "shop:trian"}, "shop has no function 'trian'; did you mean 'train'?"),
    (train, {"checkpoint-url": "/proc/nothing"}, "cannot write to file:///proc/nothing: "),
    (train, {"cache-url": "/proc/nothing"}, "cannot write to /proc/nothing: "),
    (train, {"tracking": "tracking_uri=http://127.0.0.1:9"}, "The MLflow tracking server "),
    (
        train,
        {"run_config": "min_num_proc=3"},
        "min_num_proc is 3, and num_proc=2 starts only 2 ranks",
    ),
    (train, {"num-proc": 99}, "99 ranks need 99 task slots at once"),
    (convert, {"source": "nowhere"}, "there is no table nowhere."),
    (convert, {"source": "/nowhere/x.csv"}, "there is nothing at /nowhere/x.csv."),
    (convert, {"output": "/proc/nothing"}, "cannot write to file:///proc/nothing: "),
    (
        convert,
        {"source": "{table: digits_of_jobs, where: idd > 3}"},
        "the condition 'idd > 3' does",
    ),
    (score, {"model": "models:/nothing@champion"}, "there is no model models:/nothing@champion: "),
    (score, {"model": "digits"}, "there is no model digits: "),
]


@pytest.mark.parametrize(("module", "change", "sentence"), REFUSED)
def test_what_cannot_work_is_refused_before_a_task_runs(
    spark: Any,
    table: str,
    store: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    module: Any,
    change: dict[str, object],
    sentence: str,
) -> None:
    (tmp_path / "shop.py").write_text(FUNCTION)
    good: dict[str, dict[str, object]] = {
        "train": {
            "function": "shop:train",
            "num-proc": 2,
            "backend": "torch",
            "data": f"train_data={table}",
            "hyperparameters": "epochs=1",
            "tracking": f"tracking_uri={store}",
        },
        "convert": {"source": table, "output": tmp_path / "converted"},
        "score": {
            "model": "models:/x@y",
            "trust": "true",
            "source": table,
            "output": tmp_path / "out",
            "tracking-uri": store,
        },
    }
    arguments = {**good[module.JOB.name], **change}
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "raw.parquet").write_text("")
    if arguments.get("output") == "{occupied}":
        arguments["output"] = tmp_path / "occupied"
    tracker = spark.sparkContext.statusTracker()
    jobs_before = set(tracker.getJobIdsForGroup(None))
    flags = {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    argv = [part for pair in flags.items() for part in pair]
    assert call(module.JOB, *argv) == 2
    told = capfd.readouterr().err.splitlines()
    said = [line for line in told if line.startswith(f"{module.JOB.name}: ")]
    assert len(said) == 1, told
    assert sentence in said[0]
    sys.modules.pop("shop", None)
    assert set(tracker.getJobIdsForGroup(None)) == jobs_before
    assert not runs(store, "Default")


@pytest.mark.usefixtures("light_spark_ranks")
@pytest.mark.one_lane
def test_a_search_is_a_run_with_a_run_for_each_trial(
    spark: Any, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bowl.py").write_text(
        "def train(x, offset):\n"
        "    if x > 3:\n"
        "        raise ValueError('too far')\n"
        "    return {'height': (x - 1) ** 2 + offset}\n"
    )
    config = tmp_path / "tune.yaml"
    config.write_text(
        f"""
        function: bowl:train
        backend: horovod
        num_proc: 1
        hyperparameters: {{offset: 5}}
        tracking: {{experiment: bowls, run_name: search, tracking_uri: {store}}}
        tune:
          metric: height
          direction: minimize
          trials: 4
          seed: 3
          search_space: {{x: {{choices: [0, 1, 4]}}}}
        """
    )
    assert call(tune.JOB, "--config", config, "--json", "--events", tmp_path / "events") == 0
    printed = capfd.readouterr()
    told, document = printed.err, document_of("tune", printed.out)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    of_runs = {event["run"] for event in events if event["event"] == "ended"}
    assert len(of_runs) == 4, "each trial is a run"
    assert "4 trials, 2 at a time" in told, "as many as there are slots for"
    found = runs(store, "bowls")
    (parent,) = [run for run in found if run.info.run_name == "search"]
    trials = [run for run in found if run is not parent]
    assert len(trials) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    assert parent.info.status == "FINISHED"
    best = {5: 0, 6: 1}  # By the height: what else there may have been drawn.
    assert parent.data.metrics["height"] == document["best"]["value"]
    assert parent.data.metrics["height"] in best
    assert parent.data.tags["sparkdl_runner.best_run_id"] in {run.info.run_id for run in trials}
    by_x = {run.data.params["x"]: run.info.status for run in trials}
    assert by_x.get("4", "FAILED") == "FAILED"
    space = json.loads(parent.data.tags["mlflow.sparkdl_runner.search_space"])
    assert space == {"x": {"choices": [0, 1, 4]}}


def test_a_model_of_the_registry_scores_vectors_and_doubles(
    spark: Any, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sums.py").write_text(
        "def train():\n"
        "    import torch\n"
        "    from sparkdl_runner.tracking import log_model\n"
        "    model = torch.nn.Linear(3, 2, bias=False)\n"
        "    torch.nn.init.ones_(model.weight)\n"
        "    log_model(model, input_example=torch.ones(2, 3), step=1)\n"
    )
    mlflow = f"tracking_uri={store}"
    assert (
        call(
            *(train.JOB, "--function", "sums:train", "--num-proc", -1, "--backend", "torch"),
            *("--tracking", mlflow, "experiment=sums", "registered_model_name=sums"),
            *("--tracking", "alias=champion"),
        )
        == 0
    )
    assert "registered as models:/sums/1, sums@champion" in capfd.readouterr().out

    from pyspark.ml.functions import array_to_vector

    rows = np.arange(30, dtype=np.float64).reshape(10, 3)
    expected = rows.sum(1)[:, None] * [1, 1]
    frame = spark.createDataFrame(
        [(i, row.tolist()) for i, row in enumerate(rows)], "id long, a array<double>"
    )
    frame = frame.coalesce(1)  # One Python of Spark's imports MLflow and torch, and not two.
    frame.write.parquet(str(tmp_path / "arrays"))
    frame.select("id", array_to_vector("a").alias("v")).write.parquet(str(tmp_path / "vectors"))
    model = ("--model", "models:/sums@champion", "--trust", "true", "--tracking-uri", store)
    for name in ("arrays", "vectors"):
        output = tmp_path / f"scored-{name}"
        assert call(score.JOB, *model, "--source", tmp_path / name, "--output", output) == 0
        scored = spark.read.parquet(str(output)).orderBy("id").collect()
        np.testing.assert_allclose([row.prediction for row in scored], expected)
    capfd.readouterr()
    again = ("--source", tmp_path / "arrays", "--output", tmp_path / "scored-arrays")
    assert call(score.JOB, *model, *again) == 2
    assert "already: choose another output" in capfd.readouterr().err
    assert call(score.JOB, *model, *again, "--mode", "append") == 0
    assert spark.read.parquet(str(tmp_path / "scored-arrays")).count() == 20
    spark.range(3).write.parquet(str(tmp_path / "ids"))
    no_features = ("--source", tmp_path / "ids", "--output", tmp_path / "none")
    capfd.readouterr()
    assert call(score.JOB, *model, *no_features) == 2
    assert "0 columns of arrays or vectors" in capfd.readouterr().err


@pytest.mark.one_lane
def test_a_model_is_trained_without_a_function_and_scores(
    spark: Any, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = spark.range(0, 200, 1, 1).selectExpr(
        "cast(id % 3 AS double) AS a",
        "id % 5 AS b",
        "cast(id % 3 > 1 AS long) AS label",
        "'x' AS s",
    )
    frame.write.parquet(str(tmp_path / "rows"))
    config = tmp_path / "train.yaml"
    config.write_text(
        f"""
        num_proc: 1
        data: {{train_data: {tmp_path}/rows}}
        model: {{class: torch.nn:Linear, in_features: 2, out_features: 2}}
        loss: torch.nn.functional:cross_entropy
        optimizer: {{class: torch.optim:Adam, lr: 0.1}}
        feature_cols: [a, b]
        validation: 0.2
        metrics:
          accuracy: {{class: torchmetrics.classification:MulticlassAccuracy, num_classes: 2}}
        batch_size: 16
        checkpoint_url: {tmp_path}/checkpoints
        tracking: {{experiment: of-model, tracking_uri: {store}, registered_model_name: of-model}}
        """
    )
    wrong = ("--config", config, "--feature-cols", "[a, bb]")
    assert call(train.JOB, *wrong) == 2
    assert "data.train_data has no column 'bb'; did you mean 'b'" in capfd.readouterr().err
    assert not runs(store, "of-model")
    assert call(train.JOB, "--config", config, "--hyperparameters", "epochs=5", "--json") == 0
    printed = capfd.readouterr()
    assert "registered as models:/of-model/1" in printed.err
    returned = document_of("train", printed.out)["returned"]
    (run,) = runs(store, "of-model")
    assert run.data.metrics["val_accuracy"] == returned["val_accuracy"] == 1
    assert run.data.params["optimizer.lr"] == "0.1"
    assert run.data.params["epochs"] == "5"

    output = tmp_path / "scored"
    model = ("--model", "models:/of-model/1", "--trust", "true", "--tracking-uri", store)
    scoring = (*model, "--source", tmp_path / "rows", "--output", output, "--json")
    assert call(score.JOB, *scoring) == 0
    assert document_of("score", capfd.readouterr().out)["kind"] == "folder"
    scored = spark.read.parquet(str(output)).collect()
    assert len(scored) == 200
    assert all(np.argmax(row.prediction) == row.label for row in scored)


@pytest.mark.one_lane
def test_columns_reach_a_model_by_their_names(
    spark: Any, store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weighted.py").write_text(
        "def train():\n"
        "    import mlflow, pandas as pd\n"
        "    class Weighted(mlflow.pyfunc.PythonModel):\n"
        "        def predict(self, context, model_input, params=None):\n"
        "            return model_input['amount'] + 100 * model_input['weekday']\n"
        "    frame = pd.DataFrame({'amount': [1.0], 'weekday': [2.0]})\n"
        "    signature = mlflow.models.infer_signature(frame, pd.Series([1.0]))\n"
        "    mlflow.pyfunc.log_model(name='m', python_model=Weighted(), signature=signature)\n"
    )
    assert (
        call(
            *(train.JOB, "--function", "weighted:train", "--num-proc", -1, "--backend", "torch"),
            *("--tracking", f"tracking_uri={store}", "experiment=weighted"),
            "registered_model_name=weighted",
        )
        == 0
    )
    rows = [(float(i), float(i % 7), i) for i in range(5)]
    frame = spark.createDataFrame(rows, "weekday double, amount double, id long")
    frame.coalesce(1).write.parquet(str(tmp_path / "days"))
    model = ("--model", "models:/weighted/1", "--trust", "true", "--tracking-uri", store)
    source = ("--source", tmp_path / "days")
    for number, more in enumerate(((), ("--features", "[weekday, amount]"))):
        output = tmp_path / f"scored-{number}"
        assert call(score.JOB, *model, *source, "--output", output, *more) == 0
        for row in spark.read.parquet(str(output)).collect():
            assert row.prediction == row.amount + 100 * row.weekday
    capfd.readouterr()
    less = ("--output", tmp_path / "none", "--features", "[weekday]")
    assert call(score.JOB, *model, *source, *less) == 2
    assert "features lacks 'amount', which the model takes" in capfd.readouterr().err


@pytest.mark.one_lane
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_job_that_is_asked_to_end_leaves_nothing(
    store: str, tmp_path: Path, no_torch: str, signum: int, code: int
) -> None:
    (tmp_path / "slow.py").write_text(
        "def train():\n    import time\n    print('began', flush=True)\n    time.sleep(600)\n"
    )
    job = subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "jobs" / "train.py"), "--function", "slow:train"),
            *("--num-proc", "2", "--backend", "horovod", "--tracking", f"experiment=slow-{code}"),
            f"tracking_uri={store}",
        ],
        env={**os.environ, "PYTHONPATH": no_torch},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        for line in job.stdout:
            if "[rank 1] began" in line:
                break
        job.send_signal(signum)
        _, errors = job.communicate(timeout=300)  # Half of what the ranks would take.
    finally:
        job.kill()
    assert job.returncode == code, errors
    assert errors.splitlines()[-1].startswith("train: "), errors
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    (run,) = runs(store, f"slow-{code}")
    assert run.info.status == "KILLED"
