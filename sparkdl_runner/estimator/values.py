"""Checks of the Params of ``TorchEstimator``. Each function returns the value or raises.

Spark's own converters would take 1.5 epochs for one, and know neither choices nor ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl_runner.network.outputs import TASKS

Convert = Callable[[Any], Any]


def whole(name: str, least: int | None = None) -> Convert:
    """A whole number, ``least`` or more."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {_short(value)}; it must be a whole number.")
        found = int(value.__index__())
        if least is not None and found < least:
            raise ValueError(f"{name} is {found}; it must be {least} or more.")
        return found

    return convert


def lengths(name: str) -> Convert:
    """A length, or lengths by column; ``transform`` needs the one that the training had."""
    check = whole(name, 1)

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {column: check(one) for column, one in value.items()}
        return check(value)

    return convert


def number(name: str, least: float, *, above: bool = False) -> Convert:
    """A finite number, ``least`` or more; with ``above``, more than that."""

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise TypeError(f"{name} is {_short(value)}; it must be a number.")
        found = float(value)
        if not (least < found if above else least <= found) or found == float("inf"):
            limit = f"more than {least:g}" if above else f"{least:g} or more"
            raise ValueError(f"{name} is {found:g}; it must be {limit}, and finite.")
        return found

    return convert


def choice(name: str, *choices: str) -> Convert:
    """One of some texts."""

    def convert(value: Any) -> str:
        if value not in choices:
            listed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
            raise ValueError(f"{name} is {_short(value)}; it must be {listed}.")
        return str(value)

    return convert


def text(name: str) -> Convert:
    """A text that is not empty."""

    def convert(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name} is {_short(value)}; it must be a text, such as a column name.")
        return value

    return convert


def names(name: str) -> Convert:
    """A list of column names; one alone may stand without a list."""

    def convert(value: Any) -> list[str]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, Sequence) or not found:
            raise TypeError(f"{name} is {_short(value)}; it must be a list of column names.")
        wrong = [one for one in found if not isinstance(one, str) or not one]
        if wrong:
            raise TypeError(f"{name} holds {_short(wrong[0])}; it must be a list of column names.")
        twice = [one for one in found if list(found).count(one) > 1]
        if twice:
            raise ValueError(f"{name} names {twice[0]!r} twice.")
        return list(found)

    return convert


def feature_cols(value: Any) -> Any:
    """A list of column names, or columns by argument of the model."""
    if not isinstance(value, Mapping):
        return names("feature_cols")(value)
    if not value:
        raise TypeError("feature_cols is empty; it must name the columns that the model takes.")
    return {
        argument: columns if isinstance(columns, str) else names("feature_cols")(columns)
        for argument, columns in value.items()
    }


def validation(value: Any) -> Any:
    """A share of the rows, or the name of a column."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"validation is {_short(value)}; it must be a share of the rows such as 0.2, or the "
            "name of a column that is true for the rows to validate with."
        )
    if not 0 < float(value) < 1:
        raise ValueError(f"validation is {value}; a share of the rows is between 0 and 1.")
    return float(value)


def task(value: Any) -> Any:
    """The meaning of the outputs, for all labels or by label."""
    check = choice("task", *TASKS)
    if isinstance(value, Mapping):
        return {label: check(one) for label, one in value.items()}
    return check(value)


def factory(name: str, example: str) -> Convert:
    """Accepts a callable; refuses a finished object."""

    def convert(value: Any) -> Any:
        kind = type(value).__name__
        if _is_made(value):
            arguments = ", lr=…" if name == "optimizer" else ", …"
            raise TypeError(
                f"{name} is an object of {kind}, which belongs to a model of the driver's. Give "
                f"what makes it: functools.partial({_public_name(type(value))}{arguments})."
            )
        if not callable(value):
            raise TypeError(f"{name} is {_short(value)}; it must make one, such as {example}.")
        return value

    return convert


def model(value: Any) -> Any:
    """A module, or a function that makes one."""
    if not callable(value):
        raise TypeError(
            f"model is {_short(value)}; it must be a torch.nn.Module, or a function or class that "
            "makes one without arguments."
        )
    return value


def loss(value: Any) -> Any:
    """A function of an output and a label; or one for each label, by name or in their order."""
    if isinstance(value, Mapping):
        return {label: loss(one) for label, one in value.items()}
    if isinstance(value, (list, tuple)) and value:
        return [loss(one) for one in value]
    if isinstance(value, type):
        raise TypeError(
            f"loss is the class {value.__name__}; it must compare an output and a label: give "
            f"{value.__name__}(), with its brackets."
        )
    if not callable(value):
        raise TypeError(
            f"loss is {_short(value)}; it must compare an output and a label, as "
            "torch.nn.functional.cross_entropy does."
        )
    return value


def metrics(value: Any) -> Any:
    """torchmetrics by name, or by label and name; those of a list are named by their classes."""
    if isinstance(value, (list, tuple)):
        value = {_snake_case(type(one).__name__): one for one in value}
    elif not isinstance(value, Mapping) or hasattr(value, "compute"):
        value = dict(value.items()) if hasattr(value, "items") else {"metric": value}
    for name, one in value.items():
        if isinstance(one, Mapping) and not hasattr(one, "compute"):
            metrics(one)
            continue
        if isinstance(one, type) or not all(hasattr(one, part) for part in ("update", "compute")):
            raise TypeError(
                f"metrics names {name!r}, which is {_short(one)}; it must be an object of "
                "torchmetrics, such as torchmetrics.classification.MulticlassAccuracy(10)."
            )
    return dict(value)


def numbers_by_name(name: str) -> Convert:
    """Numbers that are not negative, by label; or a list of them in the order of labels."""

    def convert(value: Any) -> Any:
        many = value.values() if isinstance(value, Mapping) else value
        if isinstance(many, (str, bytes)) or not hasattr(many, "__iter__"):
            raise TypeError(f"{name} is {_short(value)}; it must be a dict of numbers by name.")
        check = number(name, 0)
        if isinstance(value, Mapping):
            return {key: check(one) for key, one in value.items()}
        return [check(one) for one in value]

    return convert


def function(name: str, call: str) -> Convert:
    """A function that is called as ``call`` says."""

    def convert(value: Any) -> Any:
        if not callable(value):
            raise TypeError(f"{name} is {_short(value)}; it must be a function, called {call}.")
        return value

    return convert


def callbacks(value: Any) -> Any:
    """Objects with hooks."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"callbacks is {_short(value)}; it must be a list.")
    for one in value:
        if isinstance(one, type) or not (hasattr(one, "on_step") or hasattr(one, "on_epoch")):
            raise TypeError(
                f"callbacks holds {_short(one)}, which has neither on_step(trainer) nor "
                "on_epoch(trainer)."
            )
    return list(value)


def instance(name: str, kind: type) -> Convert:
    """An object of a class."""

    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} is {_short(value)}; it must be {kind.__name__}(…), an object of "
                f"{kind.__module__.rpartition('.')[0]}'s class."
            )
        return value

    return convert


def _is_made(value: Any) -> bool:
    """Whether it is an optimizer or a scheduler, of torch that was imported to make it."""
    optim = sys.modules.get("torch.optim")
    if optim is None:
        return False
    return isinstance(value, (optim.Optimizer, optim.lr_scheduler.LRScheduler))


def _public_name(kind: type) -> str:
    """``torch.optim.Adam`` of what is really ``torch.optim.adam.Adam``."""
    module = kind.__module__
    parent = module.rpartition(".")[0]
    if getattr(sys.modules.get(parent), kind.__name__, None) is kind:
        module = parent
    return f"{module}.{kind.__name__}"


def _snake_case(name: str) -> str:
    spaced = "".join(f"_{one.lower()}" if one.isupper() else one for one in name)
    return spaced.lstrip("_")


def _short(value: Any) -> str:
    found = " ".join(repr(value).split())
    return found if len(found) <= 80 else f"{found[:77]}…"
