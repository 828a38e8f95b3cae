"""A training without a function: the settings name a model, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pydantic

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError, NotPicklableError
from sparkdl_runner.jobs.parsing.refusal import sentence
from sparkdl_runner.jobs.training.arguments import check_names
from sparkdl_runner.jobs.training.data import refusals
from sparkdl_runner.jobs.training.plan_of_settings import flat, plan, put
from sparkdl_runner.jobs.training.plan_settings import PlanSettings
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.training.description.described import maker_of
from sparkdl_runner.training.description.logged import read_example, train_and_log
from sparkdl_runner.training.description.options import TrainingPlan, columns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from torch import nn

    from sparkdl_runner.data import SparkDatasetConverter


class OfModel:
    """The work of ranks if the settings name a model.

    Attributes:
        main: Trains, and logs the model.
        example_data: None: the settings say where the data is.
    """

    main = staticmethod(train_and_log)
    example_data = None

    def __init__(self, settings: TrainSettings) -> None:
        """Finds all that is named.

        Raises:
            ConfigError: Something is not there, or cannot be called with its arguments.
        """
        self._settings = settings
        self._written = settings.model_dump(
            exclude_unset=True, include=set(PlanSettings.model_fields)
        )
        self._plan = self._plan_with(settings.hyperparameters)
        has_validation = settings.validation is not None or "validation_data" in settings.data
        self._check(has_validation)

    def _check(self, has_validation: bool) -> None:
        from sparkdl_runner.training.fitting.preparation import check_settings

        try:
            check_settings(
                self._plan, backend=self._settings.backend, has_validation=has_validation
            )
        except (ValueError, TypeError, NotPicklableError) as error:
            raise ConfigError(str(error)) from None

    @property
    def run_name(self) -> RunName:
        """How its MLflow runs are called: after the model."""
        maker = maker_of(self._plan.model)
        return RunName(text=maker.__name__.strip("<>"), source=maker.__module__)

    def check(self, searched: Mapping[str, Sequence[Any]]) -> None:
        """Refuses what a search may draw, and the training cannot take.

        Raises:
            ConfigError: It names the first.
        """
        for name, values in searched.items():
            for value in values:
                try:
                    self._plan_with({**self._settings.hyperparameters, name: value})
                except ConfigError as error:
                    raise ConfigError(f"tune.search_space.{name}: {error}") from None

    def check_names(self, names: Sequence[str], searched: Mapping[str, Sequence[Any]]) -> None:
        """Refuses data that the training does not have.

        Raises:
            ConfigError: It names the first.
        """
        check_names(self.main, ["plan", *names], "data")

    def check_data(self, opened: Mapping[str, Any]) -> None:
        """Refuses data without the columns that the training reads.

        Raises:
            ConfigError: It names the first that is missing, or of a wrong type.
        """
        from sparkdl_runner.training.fitting.preparation import selection

        columns, validation = columns_of(self._plan), self._plan.validation
        for name, source in opened.items():
            known = _columns(source)
            for column in [*columns, validation] if isinstance(validation, str) else columns:
                if column not in known:
                    near = did_you_mean(column, known)
                    raise ConfigError(f"data.{name} has no column {column!r}{near}")
            if _is_frame(source):
                with refusals(f"data.{name}"):
                    selection(source, self._plan)

    def converted(
        self, opened: Mapping[str, Any], spark: SparkSession | None, stack: ExitStack
    ) -> dict[str, Any]:
        """Converts the columns that the training reads, and sends a few rows through the model.

        Args:
            opened: As ``open_source`` has opened it, by the argument's name.
            spark: The session, if there is one.
            stack: At its end, what was converted is deleted.

        Raises:
            ConfigError: Some cannot be converted, or the model cannot be trained with it.
        """
        from sparkdl_runner.training.fitting.preparation import trial

        data: dict[str, Any] = {}
        for name, source in opened.items():
            with refusals(f"data.{name}"):
                data |= self._converted(name, source, stack)
        train_data, validation_data = data["train_data"], data.get("validation_data")
        with refusals("the training cannot begin"):
            num_proc = self._settings.num_proc
            _, network = trial(self._plan, train_data, validation_data, num_proc)
            self._check_logging(network, train_data)
        return data

    def _check_logging(self, network: nn.Module, data: SparkDatasetConverter) -> None:
        """Refuses a model that ``train_and_log`` would not log after the training.

        Raises:
            ValueError: It takes what no column of a table gives, and is to be registered.
            TypeError: MLflow knows no signature for what it returns.
        """
        from sparkdl_runner.tracking.models.log_checks import check_signature

        if not (tracking := self._settings.tracking):
            return
        inputs = Inputs.of(self._plan.feature_cols, network)
        if not inputs.extra:
            check_signature(network, *read_example(self._plan, inputs, data))
        elif name := tracking.registered_model_name:
            raise ValueError(
                f"tracking.registered_model_name is {name!r}, and the model takes "
                f"{', '.join(inputs.extra)}, which is no column of a table: this job logs no such "
                "model. Train it by TorchEstimator, and log it by log_torch_model."
            )

    def _converted(self, name: str, opened: Any, stack: ExitStack) -> dict[str, Any]:
        """The data set; and, where its rows are shared out, the one for validation."""
        from sparkdl_runner.training.fitting.preparation import converted

        if not _is_frame(opened):
            return {name: opened}
        is_shared = name == "train_data"
        plan = self._plan if is_shared else replace(self._plan, validation=None)
        made = converted(opened, plan)
        data = {name: stack.enter_context(made.train)}
        if made.validation is not None:
            data["validation_data"] = stack.enter_context(made.validation)
        return data

    def arguments(self, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """The training's arguments besides its data."""
        return {"plan": self._plan_with(hyperparameters)}

    def parameters(self, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the MLflow run: each setting by its place."""
        return flat(put(self._written, hyperparameters))

    def _plan_with(self, hyperparameters: Mapping[str, Any]) -> TrainingPlan:
        written = put(self._written, hyperparameters)
        try:
            settings = PlanSettings.model_validate(written)
        except pydantic.ValidationError as error:
            raise ConfigError(sentence(error, written)) from None
        return plan(settings)


def _is_frame(opened: Any) -> bool:
    """Whether it is a DataFrame, and no converter."""
    return hasattr(opened, "schema")


def _columns(opened: Any) -> list[str]:
    if hasattr(opened, "columns"):
        return list(opened.columns)
    return [column.name for column in opened.open()[0].columns]
