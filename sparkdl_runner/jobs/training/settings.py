"""What a training may be told: the keys of its YAML, and its flags."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pydantic

from sparkdl_runner.config import RunConfig, check_min_num_proc
from sparkdl_runner.jobs.settings import Settings, settings_like
from sparkdl_runner.jobs.spark.source import Source
from sparkdl_runner.tracking.run.opening import is_set_up
from sparkdl_runner.tracking.settings import Tracking


class RunnerSettings(settings_like(RunConfig, without=["tracking"])):  # type: ignore[misc]
    """The fields of ``RunConfig``; its MLflow run has settings of its own."""


class MlflowSettings(settings_like(Tracking)):  # type: ignore[misc]
    """The fields of ``Tracking``, and what becomes of the model."""

    registered_model_name: str | None = None
    alias: str | None = None

    @pydantic.model_validator(mode="after")
    def _alias_of_something(self) -> MlflowSettings:
        if self.alias is not None and self.registered_model_name is None:
            raise ValueError("alias needs a registered_model_name")
        return self


class TrainSettings(Settings):
    """What the train job may be told."""

    arguments_of_function: ClassVar[str] = "hyperparameters"

    function: str | None = pydantic.Field(
        None, description="what each rank runs: package.module:function or path/to/file.py:function"
    )
    example: Literal["digits"] | None = pydantic.Field(
        None, description="a built-in training instead of a function, with data of its own"
    )
    backend: Literal["horovod", "torch"] = pydantic.Field(
        "torch", description="what the function calls: init_process_group() or hvd.init()"
    )
    num_proc: int = pydantic.Field(
        description="how many ranks; 0: one on each slot; negative: processes on the driver's host"
    )
    data: dict[str, Source] = pydantic.Field(
        {},
        description="arguments of the function that are data: a table, or a path; a folder of "
        "Parquet files, such as a conversion, is read where it is, everything else is converted",
    )
    cache_url: str | None = pydantic.Field(
        None, description="where data is converted to, a folder that all hosts see"
    )
    hyperparameters: dict[str, Any] = pydantic.Field(
        {}, description="further arguments of the function"
    )
    checkpoint_url: str | None = pydantic.Field(
        None, description="the function's argument checkpoint_url, a folder that all hosts see"
    )
    runner: RunnerSettings = pydantic.Field(
        default_factory=dict,
        validate_default=True,
        description="settings of RunConfig, such as max_restarts=2",
    )
    mlflow: MlflowSettings | Literal[False] | None = pydantic.Field(
        None,
        description="settings of Tracking, such as experiment=digits, and registered_model_name "
        "and alias for the model; in YAML also false for no run; without it, there is a run where "
        "MLflow is set up",
    )

    @pydantic.model_validator(mode="after")
    def _one_function(self) -> TrainSettings:
        if (self.function is None) == (self.example is None):
            raise ValueError("give either a function or an example")
        if self.example is not None and self.data:
            raise ValueError(f"the example {self.example} has data of its own: leave data out")
        elsewhere = {*self.data, *(["checkpoint_url"] if self.checkpoint_url else [])}
        twice = self.hyperparameters.keys() & elsewhere
        if twice:
            raise ValueError(f"hyperparameters.{min(twice)} is also given outside of them")
        return self

    @pydantic.model_validator(mode="after")
    def _enough_ranks(self) -> TrainSettings:
        check_min_num_proc(self.runner.build(), self.num_proc)
        return self

    @property
    def tracking(self) -> Tracking | Literal[False]:
        """Which MLflow run there is to be."""
        if self.mlflow is None:
            return Tracking() if is_set_up() else False
        return self.mlflow.build() if self.mlflow else False
