"""The settings of the score job."""

from __future__ import annotations

from typing import Literal

import pydantic

from sparkdl_runner.jobs.parsing import Settings
from sparkdl_runner.jobs.scoring.predictions import Task
from sparkdl_runner.jobs.spark.source import Source, is_table


class ScoreSettings(Settings):
    """Which model scores which rows, and where the scores go."""

    model: str = pydantic.Field(
        description="models:/name@alias, models:/name/3, models:/m-id or runs:/run_id/model"
    )
    trust: bool = pydantic.Field(
        False,
        description="that the model's author may run code: every model of MLflow's is code, so "
        "score with those alone that you would run",
    )
    source: Source = pydantic.Field(description="a table, or the path of files that Spark reads")
    output: str = pydantic.Field(description="a table's name, or a folder: a path with a slash")
    format: Literal["parquet", "delta"] | None = pydantic.Field(
        None,
        description="in which the output is written; else a table's own, or the catalog's, and "
        "Parquet in a folder",
    )
    mode: Literal["error", "overwrite", "append"] = pydantic.Field(
        "error", description="what to do where the output is there already"
    )
    features: list[str] | None = pydantic.Field(
        None,
        description="which columns the model is given, as [a, b]: one of arrays or vectors, or "
        "several of numbers, in the order of the training; else those that it names, or the only "
        "one that is an array or a vector",
    )
    prediction_column: str = pydantic.Field("prediction", description="what is added to each row")
    task: Task | None = pydantic.Field(
        None,
        description="what the scores mean: binary, multiclass or multilabel. Then there are "
        "the class, its probability and the scores, as prediction, probability and rawPrediction",
    )
    tracking_uri: str | None = pydantic.Field(
        None, description="MLflow's store, where it is not MLFLOW_TRACKING_URI"
    )

    @property
    def is_table(self) -> bool:
        """Whether the output is a table."""
        return is_table(self.output)

    @pydantic.field_validator("output")
    @classmethod
    def _table_or_folder(cls, output: str) -> str:
        if not is_table(output) and "/" not in output:
            raise ValueError(
                f"{output!r} is no table's name (parts with other signs need `backticks`) and no "
                "folder's path, which holds a slash"
            )
        return output
