"""The settings of a training that has no function: its model, and how it is trained."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field
from functools import partial
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic_core import PydanticCustomError

from sparkdl_runner.jobs.parsing import Settings, settings_like
from sparkdl_runner.jobs.parsing.refusal import OWN_WORDS
from sparkdl_runner.jobs.training.named_things import check_form, is_named
from sparkdl_runner.training.description import kinds
from sparkdl_runner.training.description.options import OPTIONS, TrainingPlan, checked_option
from sparkdl_runner.training.loop.early_stopping import EarlyStopping


def _each(value: Any) -> Any:
    if isinstance(value, list) and value:
        return [check_form(entry) for entry in value]
    return check_form(value)


def _by_name(value: Any) -> Any:
    """Several by their names, and these again by label; or one."""
    if is_named(value) or not isinstance(value, Mapping) or not value:
        return check_form(value)
    return {name: _by_name(entry) for name, entry in value.items()}


class EarlyStoppingSettings(settings_like(EarlyStopping, without=["best", "best_epoch"])):  # type: ignore[misc]
    """The fields of ``EarlyStopping`` that a person chooses."""


def _form(kind: kinds.Kind) -> Callable[[Any], Any] | None:
    """The form in which a thing is named that is made of what is written; None for plain values."""
    if kind in (kinds.model, kinds.callbacks):
        return _each
    if kind in (kinds.loss, kinds.metrics):
        return _by_name
    return check_form if isinstance(kind, (kinds.Factory, kinds.Function)) else None


def _value(name: str, written: Any) -> Any:
    """A plain value as it is written, checked as everywhere."""
    try:
        checked_option(name, written)
    except (TypeError, ValueError) as error:
        raise PydanticCustomError(OWN_WORDS, "{words}", {"words": str(error)}) from None
    return written


def _key(option: Field[Any], hint: Any) -> tuple[Any, Any]:
    """An option as a key: the type of its values, and its default and text."""
    text = option.metadata["text"]
    default = None if option.default is MISSING else option.default
    if option.name == "early_stopping":
        hint = EarlyStoppingSettings | None
        text += "; its fields, such as metric=val_loss patience=3"
    elif form := _form(option.metadata["kind"]):
        # Only the form is checked here: arguments are checked when the objects are made.
        hint, default = Annotated[Any, pydantic.AfterValidator(form)], None
        text += "; as module:name, or {class: module:name, argument: value}"
        text += "; or a list of layers" if option.metadata["kind"] is kinds.model else ""
    else:
        hint = Annotated[hint, pydantic.PlainValidator(partial(_value, option.name))]
    if isinstance(default, tuple):
        default = list(default)
    return hint, pydantic.Field(default, description=text)


_HINTS = typing.get_type_hints(TrainingPlan)
_KEYS: dict[str, Any] = {
    name: _key(option, _HINTS[name])
    for name, option in OPTIONS.items()
    if option.metadata["is_key"]
}


class PlanSettings(pydantic.create_model("PlanSettings", __base__=Settings, **_KEYS)):  # type: ignore[misc]
    """The settings of a training without a function: the options of a training."""

    earlier_names: ClassVar[Mapping[str, str]] = {"batch_size_per_rank": "batch_size"}
