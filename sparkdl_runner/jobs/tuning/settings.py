"""The settings of the tune job: those of a training, and of the search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from sparkdl_runner.jobs.parsing import Settings
from sparkdl_runner.jobs.training.named_things import check_form
from sparkdl_runner.jobs.training.settings import TrainSettings

_Named = Annotated[Any, pydantic.AfterValidator(check_form)]


class Choice(Settings):
    """The values from which a hyperparameter is drawn: a range, or a list."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    choices: list[Any] | None = None

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Choice:
        is_range = self.low is not None and self.high is not None
        if is_range == (self.choices is not None):
            raise ValueError("give either low and high, or choices")
        if self.choices is not None and (not self.choices or self.log or self.step):
            raise ValueError("choices is a list of at least one value, without log and step")
        if self.low is not None and self.high is not None:
            if self.low >= self.high:
                raise ValueError(f"low is {self.low}, which is not below high, {self.high}")
            if self.log and (self.low <= 0 or self.step):
                raise ValueError("log needs a low above 0 and no step")
        return self

    @property
    def examples(self) -> list[Any]:
        """Values of each kind that is drawn."""
        if self.choices is not None:
            return self.choices
        ends = [self.low, self.high]
        return ends if all(isinstance(end, int) for end in ends) else [float(self.low or 0)]

    def draw(self, trial: Any, name: str) -> Any:
        """Draws a value: a whole number where both ends are."""
        if self.choices is not None:
            return trial.suggest_categorical(name, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = {"step": int(self.step)} if self.step else {}
            return trial.suggest_int(name, self.low, self.high, log=self.log, **step)
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)


class SearchSettings(Settings):
    """The settings of the search."""

    metric: str = pydantic.Field(
        description="a key of what the function returns in rank 0, else a metric that it logs, "
        "else the number that it returns"
    )
    direction: Literal["maximize", "minimize"] = "maximize"
    trials: int = pydantic.Field(20, ge=1, description="how many trainings the study is to have")
    parallel: int | Literal["auto"] = "auto"
    time_limit_seconds: float | None = pydantic.Field(
        None, gt=0, description="when the search ends, and the trials that still run with it"
    )
    study_name: str | None = pydantic.Field(
        None, min_length=1, description="by which a later search goes on with this study"
    )
    storage: str | None = pydantic.Field(
        None, description="the database of Optuna that keeps the study, such as sqlite:///study.db"
    )
    sampler: _Named = pydantic.Field(
        None, description="draws the values: {class: optuna.samplers:CmaEsSampler, seed: 1}"
    )
    pruner: _Named = pydantic.Field(
        None, description="ends bad trials early: {class: optuna.pruners:MedianPruner}"
    )
    seed: int | None = None
    search_space: dict[str, Choice] = pydantic.Field(min_length=1)

    @pydantic.field_validator("parallel")
    @classmethod
    def _at_least_one(cls, value: Any) -> Any:
        if isinstance(value, int) and value < 1:
            raise ValueError("it must be 1 or more, or auto")
        return value

    @pydantic.model_validator(mode="after")
    def _belong_together(self) -> SearchSettings:
        if (self.storage is None) != (self.study_name is None):
            raise ValueError("storage and study_name go together: give both, or neither")
        if self.sampler is not None and self.seed is not None:
            raise ValueError("seed is that of the default sampler: give it among sampler's own")
        return self


class TuneSettings(TrainSettings):
    """The settings of the tune job."""

    tune: SearchSettings = pydantic.Field(
        description="what is searched for; see the example below (in YAML)"
    )

    @pydantic.model_validator(mode="after")
    def _space_fits(self) -> TuneSettings:
        twice = self.tune.search_space.keys() & self.hyperparameters.keys()
        if twice:
            raise ValueError(f"hyperparameters.{min(twice)} is fixed, and in the search_space too")
        if not self.wanted_tracking:
            raise ValueError(
                "tune keeps its trials in MLflow, which is not set up: give tracking.tracking_uri"
            )
        if self.resumed:
            raise ValueError("tracking.run_id resumes one training, and no search")
        if self.name is not None:
            raise ValueError("name is that of one training, and no search: give tune.study_name")
        return self
