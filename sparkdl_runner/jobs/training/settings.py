"""The settings of a training: the keys of its YAML, and its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pydantic

from sparkdl_runner.jobs.parsing import Settings, settings_like
from sparkdl_runner.jobs.spark.source import Source
from sparkdl_runner.jobs.training.plan_settings import PlanSettings
from sparkdl_runner.jobs.training.script_settings import ScriptSettings
from sparkdl_runner.launch.backends import BACKENDS
from sparkdl_runner.launch.config import RunConfig, check_min_num_proc
from sparkdl_runner.tracking.run.opening.store import is_set_up
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.training.description.options import REQUIRED

EVENTS = (
    "a file that gets a line of JSON for each event of a run; - for standard output, to which "
    "nothing else goes then"
)
_ELSEWHERE = ("tracking", "name", "rerun_finished", "events")


class RunConfigSettings(settings_like(RunConfig, without=_ELSEWHERE)):  # type: ignore[misc]
    """The fields of ``RunConfig`` but for those that are keys of the training itself."""


class TrackingSettings(settings_like(Tracking)):  # type: ignore[misc]
    """The fields of ``Tracking``, and the name under which the model is registered."""

    registered_model_name: str | None = None
    alias: str | None = None

    @pydantic.model_validator(mode="after")
    def _alias_of_something(self) -> TrackingSettings:
        if self.alias is not None and self.registered_model_name is None:
            raise ValueError("alias needs a registered_model_name")
        return self


class _FunctionSettings(Settings):
    """The settings of a training by a function, and those of any training."""

    function: str | None = pydantic.Field(
        None, description="what each rank runs: package.module:function or path/to/file.py:function"
    )
    example: Literal["digits"] | None = pydantic.Field(
        None, description="a built-in training instead of a function, with data of its own"
    )
    backend: Literal[tuple(sorted(BACKENDS))] = pydantic.Field(  # type: ignore[valid-type]
        "torch",
        description="what the function calls: init_process_group(), hvd.init() (horovod) or "
        "MultiWorkerMirroredStrategy() (tensorflow)",
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
        {},
        description="further arguments of the function; without one, other settings by their "
        "place, such as optimizer.lr=1e-3",
    )
    checkpoint_url: str | None = pydantic.Field(
        None, description="the function's argument checkpoint_url, a folder that all hosts see"
    )
    name: str | None = pydantic.Field(
        None,
        description="what this training is called: the same job, tried again or run on another "
        "day, goes on in the same MLflow run; one that has finished is not trained again",
    )
    rerun_finished: bool = pydantic.Field(
        False, description="whether a training of this name that has finished is trained anew"
    )
    events: str | None = pydantic.Field(None, description=EVENTS)
    run_config: RunConfigSettings = pydantic.Field(
        default_factory=dict,
        validate_default=True,
        description="settings of RunConfig, such as max_restarts=2",
    )
    tracking: TrackingSettings | Literal[False] | None = pydantic.Field(
        None,
        description="settings of Tracking, such as experiment=digits, and registered_model_name "
        "and alias for the model; in YAML also false for no run; without it, there is a run where "
        "MLflow is set up, or the function calls it",
    )


class TrainSettings(PlanSettings, ScriptSettings, _FunctionSettings):
    """The settings of the train job."""

    arguments_of_function: ClassVar[str] = "hyperparameters"
    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "what to train": ("function", "hyperparameters", "example", *ScriptSettings.model_fields),
        "on which ranks": ("num_proc", "backend", "run_config"),
        "with which data": ("data", "cache_url"),
        "what is kept": ("tracking", "name", "rerun_finished", "checkpoint_url", "events"),
        "a model in place of a function": tuple(PlanSettings.model_fields),
    }
    earlier_names: ClassVar[Mapping[str, str]] = {
        **PlanSettings.earlier_names,
        "mlflow": "tracking",
        "runner": "run_config",
    }

    @pydantic.model_validator(mode="after")
    def _one_training(self) -> TrainSettings:
        kinds = ("function", "script", "module", "model", "example")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of function, script, module, model and example")
        if self.backend == "tensorflow" and given[0] in ("model", "example"):
            raise ValueError(
                f"backend is tensorflow, and the {given[0]} is one of torch: give backend torch or "
                "horovod, or a function"
            )
        of_plan = [name for name in PlanSettings.model_fields if name in self.model_fields_set]
        if self.model is None and of_plan:
            raise ValueError(
                f"{of_plan[0]} belongs to a training that has a model and no {given[0]}: give the "
                "function its arguments by hyperparameters"
            )
        if self.model is not None:
            for name in REQUIRED:
                if getattr(self, name) is None:
                    raise ValueError(f"{name} is missing: a model is trained with one")
            if "train_data" not in self.data:
                has = f"; data has {', '.join(self.data)}" if self.data else ""
                raise ValueError(f"data.train_data is missing: the rows to learn from{has}")
            if self.validation is not None and "validation_data" in self.data:
                raise ValueError("give either validation or data.validation_data")
        if self.example is not None and self.data:
            raise ValueError(f"the example {self.example} has data of its own: leave data out")
        elsewhere = {*self.data, *(["checkpoint_url"] if self.checkpoint_url else [])}
        twice = self.hyperparameters.keys() & elsewhere
        if twice:
            raise ValueError(f"hyperparameters.{min(twice)} is also given outside of them")
        return self

    @pydantic.model_validator(mode="after")
    def _enough_ranks(self) -> TrainSettings:
        check_min_num_proc(self.run_config.build(), self.num_proc)
        return self

    @pydantic.model_validator(mode="after")
    def _name_can_be_kept(self) -> TrainSettings:
        if self.name is not None:
            RunConfig(name=self.name)
            if self.resumed:
                raise ValueError("give either name or tracking.run_id: both say where to go on")
            if not self.wanted_tracking:
                raise ValueError(
                    "name is given, which an MLflow run keeps, and MLflow is not set up: "
                    "give tracking.tracking_uri, or leave name out"
                )
        return self

    @property
    def place(self) -> str:
        """The function as the user writes it."""
        if self.model is not None:
            return "a training of a model"
        return self.function or self.script_place or f"the example {self.example}"

    @property
    def resumed(self) -> Tracking | None:
        """How the training is tracked if it names a run in which it goes on; else None."""
        if not self.tracking or self.tracking.run_id is None:
            return None
        tracking: Tracking = self.tracking.build()
        return tracking

    @property
    def wanted_tracking(self) -> Tracking | Literal[False] | None:
        """How the training is tracked; None where that depends on what it calls, see RunConfig."""
        if self.tracking is None:
            return Tracking() if is_set_up() else None
        return self.tracking.build() if self.tracking else False
