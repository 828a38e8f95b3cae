"""A training whose work is a function or a script: a person's own, or that of an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sparkdl_runner.jobs.training.arguments import check_kinds, check_names
from sparkdl_runner.jobs.training.data import converted, refusals
from sparkdl_runner.jobs.training.entry_point import find_function
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.tracking.run.opening.run_name import RunName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OfFunction:
    """The work of ranks if the settings name a function.

    Attributes:
        main: The function.
        example_data: What makes an example's data; None for data of the settings.
    """

    def __init__(self, settings: TrainSettings) -> None:
        """Finds the function.

        Raises:
            ConfigError: It is not there.
            LaunchError: The script cannot run.
        """
        self._settings = settings
        self.main: Callable[..., Any]
        self.example_data: Callable[..., Any] | None = None
        if settings.function is not None:
            self.main = find_function(settings.function)
        elif settings.script_place is not None:
            self.main = settings.find_script(travels=settings.num_proc >= 0)
        else:
            from sparkdl_runner.examples import digits

            self.main, self.example_data = digits.train, digits.frames

    @property
    def run_name(self) -> RunName | None:
        """How its MLflow runs are called; None where the runner knows that: for a script."""
        if self._settings.function is not None:
            module, _, function = self._settings.function.rpartition(":")
            return RunName(text=function.rpartition(".")[2], source=module)
        if self._settings.script_place is not None:
            return None
        return RunName(text=self._settings.example or "", source=self.main.__module__)

    def check(self, searched: Mapping[str, Sequence[Any]]) -> None:
        """Refuses hyperparameters of another kind than the function takes.

        Args:
            searched: Values that a search may draw, by argument.

        Raises:
            ConfigError: It names the first.
        """
        place = self._settings.place
        check_kinds(self.main, self._settings.hyperparameters, place)
        for name, values in searched.items():
            for value in values:
                check_kinds(self.main, {name: value}, place, "tune.search_space")

    def check_names(self, names: Sequence[str], searched: Mapping[str, Sequence[Any]]) -> None:
        """Refuses arguments that the function does not have.

        Args:
            names: Of its data, and checkpoint_url where it will be given one.
            searched: As above.

        Raises:
            ConfigError: It cannot be called so.
        """
        names = [*names, *self._settings.hyperparameters, *searched]
        names += [] if self.example_data is None else ["train_data", "test_data"]
        check_names(self.main, names, self._settings.place)

    def check_data(self, opened: Mapping[str, Any]) -> None:
        """Checks nothing: how a function uses its data is unknown."""

    def converted(
        self, opened: Mapping[str, Any], spark: SparkSession | None, stack: ExitStack
    ) -> dict[str, Any]:
        """Converts its data.

        Args:
            opened: As ``open_source`` has opened it, by the argument's name.
            spark: The session, if there is one.
            stack: At its end, what was converted is deleted.

        Raises:
            ConfigError: Some cannot be converted.
        """
        data = {}
        for name, source in opened.items():
            with refusals(f"data.{name}"):
                data[name] = stack.enter_context(converted(source, spark))
        return data

    def arguments(self, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments besides its data."""
        return dict(hyperparameters)

    def parameters(self, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the MLflow run."""
        return dict(hyperparameters)
