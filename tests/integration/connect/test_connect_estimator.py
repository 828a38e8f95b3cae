"""``TorchEstimator`` and ``TorchModel`` through Spark Connect, with Spark ML's own classes."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

from sparkdl_runner import LaunchError, RunConfig
from sparkdl_runner.data.convert import conversion
from sparkdl_runner.estimator import TorchEstimator, TorchModel, spark_folder
from sparkdl_runner.estimator.spark_folder import ConnectFolder
from sparkdl_runner.launch.driver.connect import launcher, probe

pytestmark = [pytest.mark.integration, pytest.mark.system]
ROWS = 64


@pytest.fixture
def spark(session):
    return session


@pytest.fixture
def frame(spark):
    """Two numbers, of which the first says the class, and a label."""
    from pyspark.sql import functions as F

    label = F.col("id") % 2
    return spark.range(0, ROWS, 1, 2).select(
        (label * 2.0 - 1).alias("a"), (F.col("id") / ROWS).alias("b"), label.alias("label")
    )


@pytest.fixture
def assembler(connect_mode):
    from pyspark.ml.feature import VectorAssembler

    return VectorAssembler(inputCols=["a", "b"], outputCol="features")


def estimator(**params) -> TorchEstimator:
    parts = {
        "model": partial(nn.Linear, 2, 2),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "loss": nn.functional.cross_entropy,
        "label_cols": ["label"],
        "num_proc": -1,
        "batch_size": 8,
        "epochs": 2,
        "run_config": RunConfig(tracking=False),
    }
    return TorchEstimator(**{**parts, **params})


def scoring() -> TorchModel:
    """A model without a training, which is right of every row."""
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    return TorchModel(network, ["a", "b"], {"label": "multiclass"})


def right(model, frame) -> int:
    return model.transform(frame).where("prediction = label").count()


def test_ranks_of_spark_train_as_those_of_this_host(frame, tmp_path):
    features = {"feature_cols": ["a", "b"], "validation": 0.25, "seed": 3}
    ours = estimator(num_proc=-1, **features).fit(frame)
    # Of a global batch, too, of eight rows.
    model = estimator(num_proc=2, batch_size=4, **features).fit(frame)
    assert [*map(pytest.approx, ours.history)] == model.history
    scored = model.transform(frame)
    assert scored.columns == ["a", "b", "label", "rawPrediction", "probability", "prediction"]
    assert scored.where("prediction = label").count() == ROWS

    path = f"{tmp_path}/model"
    model.save(path)
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        ours.save(path)
    ours.write().overwrite().save(path)
    again = TorchModel.load(path, trust=True)
    assert again.history == ours.history
    assert right(again, frame) == ROWS
    weights = nn.Linear(2, 2)
    assert TorchModel.load(path, model=weights).get_model() is weights


def test_a_model_of_a_classic_session_is_opened(frame, tmp_path):
    path = tmp_path / "model"
    with pytest.warns(UserWarning, match="cannot be exported"):
        scoring().save(str(path))
    copied = tmp_path / "copied"
    copied.mkdir()
    ConnectFolder(frame.sparkSession).get(f"{path}/network", copied)
    for packed in copied.glob("*.parquet"):
        packed.unlink()
    # A classic session copies the files themselves.
    shutil.rmtree(path / "network")
    copied.rename(path / "network")
    assert right(TorchModel.load(str(path), trust=True), frame) == ROWS


def test_a_large_file_comes_back_in_parts(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(spark_folder, "_PART_BYTES", 1000)
    monkeypatch.setattr(spark_folder, "_WRITE_BYTES", 2500)
    contents = {"large": bytes(range(250)) * 30, "even": bytes(2000), "small": b"x"}
    sent, copied, plain = (tmp_path / name for name in ("sent", "copied", "plain"))
    for folder in (sent, copied, plain):
        folder.mkdir()
    for name, content in contents.items():
        (sent / name).write_bytes(content)
    folder = ConnectFolder(spark)
    folder.put(sent, f"file://{tmp_path}/stored")
    assert len(list((tmp_path / "stored").glob("*.parquet"))) == 4
    folder.get(f"file://{tmp_path}/stored", copied)
    folder.get(f"file://{sent}", plain)
    for place in (copied, plain):
        assert {name: (place / name).read_bytes() for name in contents} == contents


def test_an_estimator_is_overwritten_and_loaded(spark, tmp_path):
    path = f"{tmp_path}/estimator"
    estimator(feature_cols=["a"]).save(path)
    estimator(feature_cols=["b"], epochs=7).write().overwrite().save(path)
    assert TorchEstimator.load(path, trust=True).getEpochs() == 7


def test_a_cross_validator_of_a_pipeline_is_fitted_saved_and_loaded(
    frame, assembler, tmp_path, monkeypatch
):
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder

    last = estimator(feature_cols=["features"])
    epochs = ParamGridBuilder().addGrid(last.epochs, [1, 2]).build()
    validator = CrossValidator(
        estimator=Pipeline(stages=[assembler, last]),
        estimatorParamMaps=epochs,
        evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    best = validator.fit(frame)
    less, more = best.avgMetrics
    assert more < less
    best.write().overwrite().save(f"{tmp_path}/best")
    validator.write().overwrite().save(f"{tmp_path}/validator")
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")
    again = CrossValidatorModel.load(f"{tmp_path}/best")
    assert again.avgMetrics == best.avgMetrics
    assert right(again, frame) == right(best, frame) == ROWS
    stages = CrossValidator.load(f"{tmp_path}/validator").getEstimator().getStages()
    assert stages[1].explainParams() == last.explainParams()


def test_a_fit_in_a_thread_is_in_the_session_of_its_table(new_session, monkeypatch):
    session, seen = new_session(), []
    frame = session.createDataFrame([(1.0, 2.0, 1)], "a double, b double, label long")
    new_session()  # The active one from here on.

    def refuse():
        seen.append(type(session).getActiveSession())
        raise LaunchError("that was to be seen")

    monkeypatch.setattr(launcher, "require_session", refuse)
    fitted = estimator(feature_cols=["a", "b"], num_proc=1).fit
    with ThreadPoolExecutor(1) as pool:
        for fit in (fitted, lambda table: pool.submit(fitted, table).result()):
            with pytest.raises(LaunchError, match="that was to be seen"):
                fit(frame)
    assert seen == [session, session]


def test_executors_that_lack_a_library_are_told_before_anything_is_converted_or_sent(
    frame, monkeypatch
):
    monkeypatch.setattr(probe, "NEEDED", ("no_such_library",))
    monkeypatch.setattr(probe, "_known", WeakKeyDictionary())
    monkeypatch.setattr(conversion, "convert", lambda *a, **k: pytest.fail("it was converted"))
    with pytest.raises(LaunchError, match="lacks no_such_library"):
        estimator(feature_cols=["a", "b"], num_proc=1).fit(frame)
    with pytest.raises(LaunchError, match="lacks no_such_library"):
        scoring().transform(frame)
