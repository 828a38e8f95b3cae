"""What the value of an option may be. A kind returns the value in one form, or raises.

It is called with the option's name and a value. No kind imports torch: drivers check, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sparkdl_runner.base.whole_number import require_whole

Kind = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Factory:
    """Accepts a callable; refuses a finished object, since each rank makes its own."""

    of: str
    """The argument of the call, in words."""
    example: str

    def __call__(self, name: str, value: Any) -> Any:
        """Returns the callable."""
        if callable(value) and not _is_made(value):
            return value
        expected = f"{name} is {shown(value)}; expected a function that makes one of {self.of}"
        if not _is_made(value):
            raise TypeError(f"{expected}, such as {self.example}.")
        arguments = "lr=…" if name == "optimizer" else "…"
        made_by = f"functools.partial({_public_name(type(value))}, {arguments})"
        expected = expected.replace(shown(value), f"of type {type(value).__name__}")
        raise TypeError(f"{expected}, such as {made_by}: each rank makes its own.")


@dataclass(frozen=True)
class Function:
    """A function that is called with these things, by position."""

    given: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> Any:
        """Returns the function."""
        if not callable(value):
            arguments = ", ".join(argument.removeprefix("the ") for argument in self.given)
            expected = f"expected a function, called {name}({arguments})"
            raise TypeError(f"{name} is {shown(value)}; {expected}.")
        return value


def whole(least: int | None) -> Kind:
    """A whole number, ``least`` or more."""
    return lambda name, value: require_whole(name, value, least=least)


def not_negative(name: str, value: Any) -> float:
    """A finite number, 0 or more."""
    number = _number(name, value)
    if not 0 <= number < inf:
        raise ValueError(f"{name} is {number:g}; expected 0 or more, and finite.")
    return number


def positive(name: str, value: Any) -> float:
    """A number above 0, which may be infinite."""
    number = _number(name, value)
    if not number > 0:
        raise ValueError(f"{name} is {number:g}; expected more than 0.")
    return number


def choice(*choices: str) -> Kind:
    """One of some texts."""
    listed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"

    def kind(name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{name} is {shown(value)}; expected {listed}.")
        return str(value)

    return kind


def by_name(kind: Kind) -> Kind:
    """One value for all columns, or one for each by its name."""

    def of_each(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {column: kind(name, of_column) for column, of_column in value.items()}
        return kind(name, value)

    return of_each


def length(name: str, value: Any) -> Any:
    """The length of a list, or "longest" for that of a batch's longest."""
    return value if value == "longest" else require_whole(name, value)


def checked_by_loader(name: str, value: Any) -> Any:
    """Any value: the loader checks it."""
    return value


def mapping(name: str, value: Any) -> Any:
    """A dict by column. The loader checks its values."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {shown(value)}; expected a dict by column.")
    return value


def text(name: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} is {shown(value)}; expected a text, such as a column name.")
    return value


def columns(name: str, value: Any) -> list[str]:
    """A list of column names; one alone may stand without a list."""
    names = [value] if isinstance(value, str) else value
    expected = "expected a list of column names"
    if not isinstance(names, Sequence) or not names:
        raise TypeError(f"{name} is {shown(value)}; {expected}.")
    wrong = [column for column in names if not isinstance(column, str) or not column]
    if wrong:
        raise TypeError(f"{name} holds {shown(wrong[0])}; {expected}.")
    twice = [column for column in names if list(names).count(column) > 1]
    if twice:
        raise ValueError(f"{name} names {twice[0]!r} twice.")
    return list(names)


def columns_of_arguments(name: str, value: Any) -> Any:
    """A list of column names, or columns by argument of the model."""
    if not isinstance(value, Mapping):
        return columns(name, value)
    if not value:
        raise TypeError(f"{name} is empty; expected the columns that the model takes.")
    return {
        argument: given if isinstance(given, str) else columns(name, given)
        for argument, given in value.items()
    }


def share_or_column(name: str, value: Any) -> Any:
    """A share of the rows, or the name of a column."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{name} is {shown(value)}; expected a share of the rows such as 0.2, or the name of a "
            "column that is true for the rows to validate with."
        )
    if not 0 < float(value) < 1:
        raise ValueError(f"{name} is {value}; a share of the rows is between 0 and 1.")
    return float(value)


def weights(name: str, value: Any) -> Any:
    """Numbers by name, and these again by label; or a list of numbers."""
    if isinstance(value, Mapping):
        return {
            key: weights(name, inner) if isinstance(inner, Mapping) else not_negative(name, inner)
            for key, inner in value.items()
        }
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is {shown(value)}; expected a dict of numbers by name.")
    return [not_negative(name, number) for number in value]


def model(name: str, value: Any) -> Any:
    """A module, or a function that makes one."""
    if not callable(value):  # A module can be called.
        raise TypeError(
            f"{name} is {shown(value)}; expected a torch.nn.Module, or a function that makes one."
        )
    return value


def loss(name: str, value: Any) -> Any:
    """A function of an output and a label; or one for each label, by name or in their order."""
    if isinstance(value, Mapping):
        return {label: loss(name, of_label) for label, of_label in value.items()}
    if isinstance(value, (list, tuple)) and value:
        return [loss(name, of_label) for of_label in value]
    if isinstance(value, type):
        made = f"{value.__name__}()"
        raise TypeError(f"{name} is {shown(value)}; expected {made}, with its brackets.")
    if not callable(value):
        raise TypeError(
            f"{name} is {shown(value)}; expected a function of an output and a label, such as "
            "torch.nn.functional.cross_entropy, or one for each label column."
        )
    return value


def metrics(name: str, value: Any) -> Any:
    """torchmetrics by name, or by label and name; those of a list are named by their classes."""
    if isinstance(value, (list, tuple)):
        value = {_snake_case(type(metric).__name__): metric for metric in value}
    elif not isinstance(value, Mapping) or hasattr(value, "compute"):
        value = dict(value.items()) if hasattr(value, "items") else {"metric": value}
    for key, metric in value.items():
        place = f"{name}[{key!r}]"
        if isinstance(metric, Mapping) and not hasattr(metric, "compute"):
            metrics(place, metric)
            continue
        parts = ("update", "compute", "reset", "update_count")
        if isinstance(metric, type) or not all(hasattr(metric, part) for part in parts):
            raise TypeError(
                f"{place} is {shown(metric)}; expected a metric of torchmetrics, such as "
                "torchmetrics.MeanSquaredError()."
            )
    return dict(value)


def callbacks(name: str, value: Any) -> Any:
    """Objects with hooks."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is {shown(value)}; expected a list.")
    for callback in value:
        if isinstance(callback, type) or not (
            hasattr(callback, "on_step") or hasattr(callback, "on_epoch")
        ):
            raise TypeError(
                f"{name} holds {shown(callback)}, which has neither on_step(trainer) nor "
                "on_epoch(trainer)."
            )
    return list(value)


def instance(of: type) -> Kind:
    """An object of a class."""

    def kind(name: str, value: Any) -> Any:
        if not isinstance(value, of):
            raise TypeError(f"{name} is {shown(value)}; expected {of.__name__}(…).")
        return value

    return kind


def shown(value: Any) -> str:
    """A value in an error's sentence."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    line = " ".join(repr(value).split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {shown(value)}; expected a number.")
    return float(value)


def _is_made(value: Any) -> bool:
    """Whether it is an optimizer or a scheduler, of torch that was imported to make it."""
    optim = sys.modules.get("torch.optim")
    if optim is None:
        return False
    return isinstance(value, (optim.Optimizer, optim.lr_scheduler.LRScheduler))


def _public_name(of: type) -> str:
    """``torch.optim.Adam`` of what is really ``torch.optim.adam.Adam``."""
    module = of.__module__
    parent = module.rpartition(".")[0]
    if getattr(sys.modules.get(parent), of.__name__, None) is of:
        module = parent
    return f"{module}.{of.__name__}"


def _snake_case(name: str) -> str:
    spaced = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return spaced.lstrip("_")
