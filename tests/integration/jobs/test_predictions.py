"""The columns that a score job writes: one output, several, and what scores say of classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.scoring.output import check_columns
from sparkdl_runner.jobs.scoring.predictions import with_predictions
from sparkdl_runner.tensors.outputs import prediction_columns

pytestmark = pytest.mark.integration

# Scores that are large, equal and negative.
SCORES = [[1.0, 3.0, 2.0], [1000.0, -1000.0, 999.0], [0.0, 0.0, 0.0], [-5.0, -0.5, 0.25]]


@pytest.fixture(scope="module")
def scored_columns() -> dict[str, str]:
    def at(values: list[str]) -> str:
        return f"element_at(array({', '.join(values)}), cast(id + 1 AS int))"

    arrays = [f"array({', '.join(f'{one}f' for one in row)})" for row in SCORES]
    return {"several": at(arrays), "one": at([f"{row[1]}D" for row in SCORES])}


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_classes_and_probabilities_are_those_of_a_fitted_model(
    spark: Any, scored_columns: dict[str, str], task: Any
) -> None:
    from pyspark.sql.functions import array, expr

    one = expr(scored_columns["one"])
    forms = [one, array(one)] if task == "binary" else [expr(scored_columns["several"])]
    numbers = torch.tensor(SCORES)[:, 1] if task == "binary" else torch.tensor(SCORES)
    expected = {name: found.numpy() for name, found in prediction_columns(numbers, task).items()}
    for scores in forms:
        found = with_predictions(spark.range(0, 4, 1, 1), "rows", scores, "class", task)
        assert found.columns == ["id", "rawPrediction", "probability", "class"]
        rows = found.collect()
        for name in ("rawPrediction", "probability"):
            np.testing.assert_allclose([row[name] for row in rows], expected[name], atol=1e-12)
        predicted = expected["prediction"]
        if task == "multilabel":
            predicted = [list(map(float, np.flatnonzero(one))) for one in predicted]
            assert [row["class"] for row in rows] == predicted
        else:
            assert [row["class"] for row in rows] == predicted.tolist()


def test_several_outputs_are_columns_of_their_names(spark: Any) -> None:
    from pyspark.sql.functions import expr

    scores = expr("struct(id * 2 AS score, array(id) AS hidden)")
    rows = spark.range(3).withColumnRenamed("id", "key").selectExpr("key", "key AS id")
    found = with_predictions(rows, "rows", scores, "prediction", None)
    assert found.columns == ["key", "id", "score", "hidden"]
    assert [tuple(row) for row in found.orderBy("key").collect()][2] == (2, 2, 4, [2])


@pytest.mark.parametrize(
    ("scores", "task", "told"),
    [
        ("struct(id AS score, id AS other)", "binary", "returns score, other: leave task out"),
        ("struct(id AS id, id AS other)", None, "rows has a column 'id' already"),
        ("id", "multiclass", "returns bigint for a row: it takes an array of numbers"),
        ("'a'", "binary", "returns string for a row: it takes one number"),
        ("array(id)", None, None),
    ],
)
def test_outputs_that_make_no_columns_are_refused(
    spark: Any, scores: str, task: Any, told: str | None
) -> None:
    from pyspark.sql.functions import expr

    def add() -> Any:
        return with_predictions(spark.range(3), "rows", expr(scores), "prediction", task)

    if told is None:
        assert add().columns == ["id", "prediction"]
        return
    with pytest.raises(ConfigError) as raised:
        add()
    assert told in str(raised.value)


def test_scores_are_not_appended_to_other_columns(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    settings: Any = SimpleNamespace(mode="append", output=str(folder), is_table=False, format=None)
    scores = spark.range(3).selectExpr("id", "id * 0.5D AS prediction")
    check_columns(settings, spark, scores)  # There is nothing yet.
    scores.write.parquet(str(folder))
    check_columns(settings, spark, scores)
    for others, told in (
        (
            scores.selectExpr("id", "cast(prediction AS float) AS prediction"),
            "is double, and float",
        ),
        (scores.selectExpr("id"), "is double, and missing in the scores"),
        (scores.selectExpr("*", "1 AS x"), "'x' is not there, and int in the scores"),
    ):
        with pytest.raises(ConfigError) as raised:
            check_columns(settings, spark, others)
        assert told in str(raised.value)
