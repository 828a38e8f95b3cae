"""A call of a user's function: checked and pickled, and asked for what the driver tells of it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.launch.driver.calls.checks import check_on_driver
from sparkdl_runner.launch.driver.calls.chosen_place import ChosenPlace, chosen_place
from sparkdl_runner.launch.driver.calls.ingredients import arguments, ingredients, refers_to
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.launch.script.tags import script_tags
from sparkdl_runner.launch.wire import by_value
from sparkdl_runner.tracking.run.datasets import converters_in

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.opening.named import Work


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function, or a script, with its arguments: made by ``of``, the same for all attempts."""

    main: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    packed: bytes
    """All three, as they travel to the ranks."""

    @classmethod
    def of(cls, main: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Checks a call, and pickles it.

        Raises:
            TypeError: As of ``check_call``.
            LaunchError: This is not the driver.
            NotPicklableError: As of ``pack``.
        """
        check_call(main, *args, **kwargs)
        check_on_driver()
        return cls(main=main, args=args, kwargs=kwargs, packed=pack(main, *args, **kwargs))

    @property
    def arguments(self) -> dict[str, Any]:
        """By name, defaults included."""
        return arguments(self.main, *self.args, **self.kwargs)

    @property
    def conversions(self) -> dict[str, Any]:
        """The data sets that the function uses, by what it calls them."""
        return converters_in(ingredients(self.main, *self.args, **self.kwargs))

    @property
    def calls_mlflow(self) -> bool:
        """Whether the function, or a helper of it, names MLflow; or the script imports it."""
        if isinstance(self.main, Script):
            return self.main.imports("mlflow")
        return refers_to(self.main, "mlflow")

    @property
    def place(self) -> ChosenPlace:
        """The MLflow store and experiment that it chooses itself."""
        return chosen_place(self.main, self.arguments)

    @property
    def run_name(self) -> str:
        """How its MLflow runs are called: after the function, or the script's file or module."""
        if isinstance(self.main, Script):
            return self.main.name.removesuffix(".py").rpartition(".")[2] or self.main.name
        return _name(self.main).strip("<>")

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its MLflow run: those of a script."""
        return script_tags(self.main) if isinstance(self.main, Script) else {}

    @property
    def work(self) -> Work:
        """See ``work_of``."""
        return work_of(self.main)


def work_of(main: Callable[..., Any]) -> Work:
    """What a function or a script trains, as a training with a name keeps it."""
    # MLflow's part is imported only where a run is wanted.
    from sparkdl_runner.tracking.run.opening.named import Work

    return Work(function=main.name, code=None) if isinstance(main, Script) else Work.of(main)


def check_call(main: object, /, *args: Any, **kwargs: Any) -> None:
    """Checks that ``main(*args, **kwargs)`` can be called at all, before anything is started.

    Raises:
        TypeError: ``main`` is no callable, lacks an argument, or does not take one of these.
    """
    if not callable(main):
        raise TypeError(
            f"main is {main!r}, a {type(main).__name__}; it must be a function that takes the "
            "arguments given to run()."
        )
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):
        return  # Some built-in callables have none; the call itself will show what is wrong.
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} by position"] * bool(args) + list(kwargs))
        raise TypeError(
            f"{_name(main)}{signature} cannot be called with the arguments given to run() "
            f"({given or 'none'}): {error}."
        ) from None


def pack(main: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bytes:
    """Pickles ``main`` and its arguments, by value where they are not importable.

    Raises:
        NotPicklableError: It names the variable that is in the way.
    """
    try:
        return by_value.dumps((main, args, kwargs))
    except Exception as error:
        culprit = _find_unpicklable(main, args, kwargs)
        raise NotPicklableError(
            f"{_name(main)} cannot be sent to the ranks: {culprit or 'it'} cannot be pickled "
            f"({type(error).__name__}: {first_line(error)}). Create it inside the function, or "
            "pass what it is made from as an argument."
        ) from error


def _name(main: object) -> str:
    while isinstance(main, functools.partial):
        main = main.func
    return getattr(main, "__name__", type(main).__name__)


def _find_unpicklable(
    main: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Names the first thing that ``main(*args, **kwargs)`` needs and that cannot be pickled."""
    for description, value in ingredients(main, *args, **kwargs):
        if not _is_picklable(value):
            for words, part in _parts(value):
                if not _is_picklable(part):
                    description, value = f"{words} of {description}", part
                    break
            return f"{description}, a {type(value).__module__}.{type(value).__qualname__},"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass, such as the plan of a fit; or what a function is made of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"the field {field.name!r}", getattr(value, field.name)
    elif isinstance(value, (types.FunctionType, functools.partial)):
        yield from ingredients(value)


def _is_picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
