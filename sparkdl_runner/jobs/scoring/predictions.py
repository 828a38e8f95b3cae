"""The columns of predictions: what a model returns, and what its scores say of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sparkdl_runner.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Task = Literal["binary", "multiclass", "multilabel"]
PROBABILITY, RAW_PREDICTION = "probability", "rawPrediction"


def with_predictions(
    frame: DataFrame, place: str, scores: Column, name: str, task: Task | None
) -> DataFrame:
    """The rows with the predictions beside their own columns; nothing is computed yet.

    Args:
        frame: The rows.
        place: What a person calls them.
        scores: What the model returns for a row.
        name: What the prediction is called. Several outputs have the names that the model gives.
        task: What the scores mean; with it there are the class, or the classes, ``probability`` and
            ``rawPrediction``, as Spark ML's classifiers give them, computed by Spark itself.

    Raises:
        ConfigError: The names are taken, or the model returns several outputs or no scores.
    """
    from pyspark.sql import types as t
    from pyspark.sql.functions import col, expr

    kind = frame.select(scores).schema[0].dataType
    if isinstance(kind, t.StructType):
        outputs = kind.fieldNames()
        if task is not None:
            raise ConfigError(
                f"task is {task}, and the model returns {', '.join(outputs)}: leave task out."
            )
        _check_free(frame, place, outputs, "leave the column out by source.columns")
        own = [col(f"`{column}`") for column in frame.columns]
        scored = frame.withColumn(name, scores)
        return scored.select(*own, *[col(f"`{name}`")[output].alias(output) for output in outputs])
    _check_free(frame, place, [name], "choose another prediction_column")
    if task is None:
        return frame.withColumn(name, scores)
    is_array = isinstance(kind, t.ArrayType)
    number = kind.elementType if isinstance(kind, t.ArrayType) else kind
    if not isinstance(number, t.NumericType) or (task != "binary" and not is_array):
        raise ConfigError(
            f"task is {task}, and the model returns {kind.simpleString()} for a row: it takes "
            + ("one number" if task == "binary" else "an array of numbers, one for each class")
            + "."
        )
    _check_free(frame, place, [PROBABILITY, RAW_PREDICTION], "leave it out by source.columns")
    raw = f"`{RAW_PREDICTION}`"
    scored = frame.withColumn(RAW_PREDICTION, scores)
    scored = scored.withColumn(RAW_PREDICTION, expr(_raw(raw, task, is_array=is_array)))
    scored = scored.withColumn(PROBABILITY, expr(_probability(raw, task)))
    return scored.withColumn(name, expr(_prediction(raw, task)))


def _check_free(frame: DataFrame, place: str, names: Sequence[str], remedy: str) -> None:
    for name in names:
        if name in frame.columns:
            raise ConfigError(f"{place} has a column {name!r} already: {remedy}.")


def _raw(scores: str, task: Task, *, is_array: bool) -> str:
    if task != "binary":
        return f"cast({scores} AS array<double>)"
    score = f"{scores}[0]" if is_array else scores
    both = f"array(-cast({score} AS double), cast({score} AS double))"
    if not is_array:
        return both
    message = "'task is binary, and the model returns ', size({0}), ' numbers for a row, not one'"
    refusal = f"raise_error(concat({message.format(scores)}))"
    return f"if(size({scores}) = 1, {both}, cast({refusal} AS array<double>))"


def _probability(raw: str, task: Task) -> str:
    if task == "multilabel":
        return f"transform({raw}, one -> 1 / (1 + exp(-one)))"
    if task == "binary":
        return f"array(1 / (1 + exp({raw}[1])), 1 / (1 + exp(-{raw}[1])))"
    # Less the largest, so that no power is infinite.
    powers = f"transform({raw}, one -> exp(one - array_max({raw})))"
    total = f"aggregate({powers}, 0D, (sum, one) -> sum + one)"
    return f"transform({powers}, one -> one / {total})"


def _prediction(raw: str, task: Task) -> str:
    if task == "multilabel":
        likely = f"transform({raw}, (one, place) -> if(one > 0, cast(place AS double), null))"
        return f"filter({likely}, one -> one IS NOT NULL)"
    return f"cast(array_position({raw}, array_max({raw})) - 1 AS double)"
