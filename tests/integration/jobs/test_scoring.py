"""From a training to scores as a user goes: by the files in jobs/, on columns of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs import score
from sparkdl_runner.jobs.parsing import command
from sparkdl_runner.jobs.scoring.features import features

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "jobs"
WEIGHTS = (1, 10, 100)
# The weights differ, so that an order other than that of the training shows.
TRAINING = """
def train(data, column):
    import torch
    from sparkdl_runner.tracking import log_model

    with data.make_torch_dataloader(4, num_epochs=1, shuffle=False) as loader:
        rows = next(iter(loader))[column]
    model = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
    log_model(model, input_example=rows, step=1)
"""


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def rows(spark: Any, tmp_path: Path) -> Path:
    """Twenty rows, with the same numbers in three columns and in one of arrays."""
    # In one file, so that a job starts one Python with torch and not two.
    frame = spark.range(0, 20, 1, 1).selectExpr(
        *("id", "cast(id AS double) AS a", "cast(id % 7 AS double) AS b", "id % 3 AS c"),
        *(
            "array(cast(id AS float), cast(id % 7 AS float), cast(id % 3 AS float)) AS v",
            "'x' AS s",
        ),
        "transform(sequence(0, id % 2 + 1), one -> 1.0f) AS ragged",
    )
    frame.write.parquet(str(tmp_path / "rows"))
    return tmp_path / "rows"


@pytest.fixture(scope="module")
def model(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, ...]:
    """Flags that name a registered model, which takes three numbers of each row."""
    import mlflow
    import torch

    from sparkdl_runner.tracking import log_model

    folder = tmp_path_factory.mktemp("model")
    store = new_store(folder)
    before, environment = os.getcwd(), dict(os.environ)
    os.chdir(folder)  # where MLflow puts the artifacts of such a store
    try:
        mlflow.set_tracking_uri(store)
        network = torch.nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            network.weight.copy_(torch.tensor([[float(one) for one in WEIGHTS]]))
        with mlflow.start_run():
            log_model(network, input_example=torch.ones(2, 3), registered_model_name="weighted")
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
    return ("--model", "models:/weighted/1", "--trust", "true", "--tracking-uri", store)


def call(*argv: object) -> int:
    return command.main(score.JOB, [str(one) for one in argv])


def in_a_process(*argv: object) -> str:
    job = subprocess.run([str(one) for one in argv], capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def assert_right(spark: Any, place: Path, count: int = 20) -> None:
    scored = spark.read.parquet(str(place)).collect()
    assert len(scored) == count
    for row in scored:
        assert list(row.prediction) == [row.a + 10 * row.b + 100 * row.c]


SUBMIT = (Path(sys.executable).with_name("spark-submit"), "--master", "local[2]")


@pytest.mark.one_lane
def test_what_train_registers_is_what_score_applies(
    spark: Any, rows: Path, tmp_path: Path, new_store: Callable[[Path], str]
) -> None:
    (tmp_path / "shop.py").write_text(TRAINING)
    store = new_store(tmp_path)
    told = in_a_process(
        *(sys.executable, JOBS / "train.py", "--function", "shop:train", "--backend", "torch"),
        *("--num-proc", 2, "--data", f"data={{path: {rows}, columns: [v]}}"),
        *("--hyperparameters", "column=v", "--cache-url", tmp_path / "cache"),
        *("--tracking", f"tracking_uri={store}", "registered_model_name=shop", "alias=champion"),
    )
    assert "registered as models:/shop/1, shop@champion" in told
    source = f"{{path: {rows}, columns: [a, b, c, v]}}"
    in_a_process(
        *(*SUBMIT, JOBS / "score.py", "--model", "models:/shop@champion", "--trust", "true"),
        *("--source", source),
        *("--output", tmp_path / "scored", "--tracking-uri", store),
    )
    assert_right(spark, tmp_path / "scored")


def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    spark: Any,
    rows: Path,
    model: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "scored"
    arguments = (*model, "--source", rows, "--output", output)
    for names, sentence in (
        ("[a]", "the model takes 3 numbers of each row, and features has 1 column of numbers (a)"),
        ("[a, b, c, id]", "takes 3 numbers of each row, and features has 4 columns of numbers"),
        ("[v, a]", "features has 'v', a column of arrays, among others"),
        ("[a, b, s]", "the column 's' is of type string, and the model takes numbers"),
        ("[a, b, z]", "has no column 'z', which the model is to be given"),
    ):
        assert call(*arguments, "--features", names) == 2
        told = capfd.readouterr().err
        assert sentence in told
        assert "Traceback" not in told
    narrow = f"{{path: {rows}, columns: [a, b, c]}}"
    assert call(*model, "--source", narrow, "--output", output) == 2
    assert "or which 3 columns of numbers, in the order of the training" in capfd.readouterr().err
    assert not output.exists()


@pytest.mark.one_lane
def test_a_failure_in_the_middle_leaves_nothing_that_looks_whole(
    spark: Any,
    rows: Path,
    model: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "scored"
    arguments = (*model, "--output", output, "--source")
    misfit = (rows, "--features", "[ragged]")
    assert call(*arguments, *misfit) == 1
    told = capfd.readouterr().err.splitlines()
    (said,) = [line for line in told if line.startswith("score: ")]
    assert "could not be converted to the expected shape of: '(-1, 3)'" in said
    assert not output.exists()

    # The same command works once it is right; and what was there outlives an overwrite that fails.
    assert call(*arguments, rows, "--features", "[a, b, c]") == 0
    assert_right(spark, output)
    assert call(*arguments, *misfit, "--mode", "overwrite") == 1
    assert_right(spark, output)
    assert not [one.name for one in output.iterdir() if one.is_dir()]
    assert (
        call(
            *arguments,
            f"{{path: {rows}, where: id < 5}}",
            "--features",
            "[v]",
            "--mode",
            "overwrite",
        )
        == 0
    )
    assert_right(spark, output, count=5)
    names = {one.name for one in output.iterdir() if not one.name.endswith((".parquet", ".crc"))}
    assert names == {"_SUCCESS"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("orders.parquet", "holds orders.parquet, which is no Parquet file that Spark wrote"),
        ("_conversion-20260101-a", "holds _conversion-20260101-a, which is no"),
        (".git", "holds .git, which is no"),
        ("_delta_log", "is a Delta table"),
    ],
)
def test_what_is_no_scores_is_not_overwritten(
    rows: Path,
    model: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    said: str,
) -> None:
    output = tmp_path / "precious"
    (output / name).mkdir(parents=True)
    arguments = (*model, "--source", rows, "--features", "[a, b, c]", "--output", output)
    assert call(*arguments, "--mode", "overwrite") == 2
    assert said in capfd.readouterr().err
    assert [one.name for one in output.iterdir()] == [name]


def test_what_is_read_is_not_overwritten(
    rows: Path, model: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in rows.iterdir())
    source = f"{{path: {rows}, where: id < 5}}"
    arguments = (*model, "--source", source, "--features", "[v]", "--output", rows)
    assert call(*arguments, "--mode", "overwrite") == 2
    assert "which they were to be written to: choose another place" in capfd.readouterr().err
    assert sorted(path.name for path in rows.iterdir()) == before


def test_a_tensor_with_a_name_is_given_its_own_numbers(spark: Any) -> None:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Schema, TensorSpec

    names = Schema(
        [
            TensorSpec(np.dtype("float32"), (-1, 2), name="x"),
            TensorSpec(np.dtype("int64"), (-1,), name="y"),
        ]
    )
    frame = spark.createDataFrame([([1.5, 2.5], 3)], "x array<double>, y int")
    (given,) = features(frame, "rows", None, ModelSignature(inputs=names))
    assert frame.select(given.alias("given")).schema["given"].dataType.simpleString() == (
        "struct<x:array<float>,y:bigint>"
    )


def test_rows_of_sizes_that_vary_need_a_models_columns(spark: Any) -> None:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Array, ColSpec, DataType, Schema, TensorSpec

    frame = spark.createDataFrame([([1, 2], 3)], "t array<int>, n int")
    tensor = ModelSignature(inputs=Schema([TensorSpec(np.dtype("int64"), (-1, -1))]))
    with pytest.raises(ConfigError, match="rows of sizes that may vary"):
        features(frame, "rows", ["t"], tensor)
    named = [ColSpec(Array(DataType.long), "t"), ColSpec(DataType.double, "n")]
    (given,) = features(frame, "rows", None, ModelSignature(inputs=Schema(named)))
    assert frame.select(given.alias("given")).schema["given"].dataType.simpleString() == (
        "struct<t:array<bigint>,n:double>"
    )


def test_a_table_whose_writing_failed_is_not_there(
    spark: Any, rows: Path, model: tuple[str, ...]
) -> None:
    arguments = (*model, "--source", rows, "--output", "scores_of_jobs")
    try:
        assert call(*arguments, "--features", "[ragged]") == 1
        assert not spark.catalog.tableExists("scores_of_jobs")
        assert call(*arguments, "--features", "[a, b, c]") == 0
        assert spark.table("scores_of_jobs").count() == 20
    finally:
        spark.sql("DROP TABLE IF EXISTS scores_of_jobs")
