"""``TorchEstimator`` in Spark ML's own Pipeline, CrossValidator and TrainValidationSplit."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from estimator_parts import estimator, frame
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import Evaluator, MulticlassClassificationEvaluator
from pyspark.ml.feature import Binarizer, VectorAssembler
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
)
from pyspark.sql import functions as F
from torch import nn

from sparkdl_runner.data.convert import conversion
from sparkdl_runner.estimator import TorchEstimator

FOLDS = 2


def test_a_cross_validator_converts_once_a_fold_and_deletes_it(spark, tmp_path, monkeypatch):
    counted = []
    real = conversion.write_parquet
    monkeypatch.setattr(conversion, "write_parquet", lambda *a: counted.append(a) or real(*a))
    setting = "petastorm.spark.converter.parentCacheDirUrl"
    spark.conf.set(setting, tmp_path.as_uri())
    fitted = estimator(model=partial(nn.Linear, 2, 2), label_cols=["label"])
    grid = ParamGridBuilder().addGrid(
        fitted.optimizer, [partial(torch.optim.SGD, lr=rate) for rate in (0.0, 0.5)]
    )
    validator = CrossValidator(
        estimator=fitted,
        estimatorParamMaps=grid.build(),
        evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
        numFolds=FOLDS,
        parallelism=2,
        seed=1,
    )
    try:
        best = validator.fit(frame(spark))
    finally:
        spark.conf.unset(setting)
    # One for each fold, and one for the best setting on all rows.
    assert len(counted) == FOLDS + 1
    assert not list(tmp_path.rglob("*.parquet"))
    untrained, trained = best.avgMetrics
    assert trained < untrained
    assert best.bestModel.history
    assert best.bestModel.transform(frame(spark)).where("prediction = label").count() > 55
    # Spark writes a grid as JSON, which holds no function that makes an optimizer.
    epochs = ParamGridBuilder().addGrid(fitted.epochs, [1, 2]).build()
    best.set(best.estimatorParamMaps, epochs)
    best.save(f"{tmp_path}/found")
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")
    again = CrossValidatorModel.load(f"{tmp_path}/found")
    assert again.avgMetrics == best.avgMetrics
    assert again.getEstimatorParamMaps() == epochs
    assert again.transform(frame(spark)).where("prediction = label").count() > 55


def test_a_pipeline_is_saved_and_loaded_with_its_estimator(spark, tmp_path, monkeypatch):
    stages = [
        VectorAssembler(inputCols=["a", "b"], outputCol="features"),
        estimator(model=partial(nn.Linear, 2, 2), epochs=3),
    ]
    Pipeline(stages=stages).save(f"{tmp_path}/pipeline")
    with pytest.raises(ValueError, match=r"model was saved as a partial.*SPARKDL_RUNNER_TRUST=1"):
        Pipeline.load(f"{tmp_path}/pipeline")
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")
    pipeline = Pipeline.load(f"{tmp_path}/pipeline")
    loaded = pipeline.getStages()[1]
    assert isinstance(loaded, TorchEstimator)
    assert loaded.uid == stages[1].uid
    assert loaded.explainParams() == stages[1].explainParams()
    table = frame(spark).select(
        (F.col("label") * 2 - 1).alias("a"), (F.col("id") / 64).alias("b"), "label"
    )
    model = pipeline.fit(table)
    assert model.transform(table).where("prediction = label").count() > 55


def test_an_estimator_of_other_versions_is_told_and_a_pickle_needs_trust(spark, tmp_path):
    path = f"{tmp_path}/estimator"
    with pytest.warns(UserWarning, match="model .Linear of 6 parameters. is saved as a pickle"):
        estimator().save(path)
    with pytest.raises(ValueError, match="model was saved as a pickle"):
        TorchEstimator.load(path)
    assert TorchEstimator.load(path, trust=True).getModel().in_features == 2
    part = next((tmp_path / "estimator" / "metadata").glob("part-*"))
    metadata = json.loads(part.read_text())
    metadata["sparkdl_runner"]["torch"] = "1.2"
    part.write_text(json.dumps(metadata))
    part.with_name(f".{part.name}.crc").unlink()
    with pytest.warns(UserWarning, match="saved with torch 1.2, and this is"):
        TorchEstimator.load(path, trust=True)


@pytest.fixture
def fits(monkeypatch):
    """The name and the run above it that each fit would have, in place of the fits."""
    made = []

    def fit(self, *_):
        name = self._run_name
        made.append((None, None) if name is None else (name.text, name.below))
        model = Binarizer(inputCol="id", outputCol="prediction")  # Any Transformer will do.
        model.run_id = None
        return model

    monkeypatch.setattr(TorchEstimator, "_fit_on", fit)
    return made


class Constant(Evaluator):
    def _evaluate(self, dataset):
        return 1.0


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_fits_of_a_search_are_told_apart_by_values_and_folds(spark, fits, monkeypatch, in_pipeline):
    monkeypatch.setattr("mlflow.active_run", lambda: "the run above")
    fitted, bins = estimator(), Binarizer(inputCol="id", outputCol="large")
    grid = ParamGridBuilder().addGrid(
        fitted.optimizer, [partial(torch.optim.SGD, lr=rate) for rate in (0.1, 0.5)]
    )
    if in_pipeline:
        grid.addGrid(bins.threshold, [1.0, 2.0])
    values = [f"lr={rate}" for rate in (0.1, 0.5)]
    if in_pipeline:
        values = [f"{one} threshold={bound}" for one in values for bound in (1.0, 2.0)]
    common = {
        "estimator": Pipeline(stages=[bins, fitted]) if in_pipeline else fitted,
        "estimatorParamMaps": grid.build(),
        "evaluator": Constant(),
        "parallelism": 2,
    }
    table = frame(spark).withColumn("id", F.col("id").cast("double"))
    CrossValidator(numFolds=FOLDS, **common).fit(table)
    *searched, best = fits
    wanted = {(f"{one} (fold {fold})", "the run above") for one in values for fold in (1, 2)}
    assert set(searched) == wanted
    assert len(searched) == len(wanted)
    assert best == (None, None), "the fit of the best values is called after its network"
    fits.clear()
    TrainValidationSplit(**common).fit(table)
    assert sorted(fits[:-1]) == sorted((one, "the run above") for one in values)
