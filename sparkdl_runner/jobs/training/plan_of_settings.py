"""From the settings of a training without a function to its plan, and each setting by its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.training.named_things import CLASS, function, is_named, maker, thing
from sparkdl_runner.jobs.training.plan_settings import PlanSettings
from sparkdl_runner.training.description.maker import Maker, sequential
from sparkdl_runner.training.description.plan import TrainingPlan

_READING = ("nulls", "fill_value", "pad", "images")


def plan(settings: PlanSettings) -> TrainingPlan:
    """The training that the settings describe.

    Raises:
        ConfigError: Something that they name is not there, or cannot be called with its arguments.
    """
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    given = {name: value for name, value in given.items() if value is not None}
    reading = {name: given.pop(name) for name in _READING if name in given}
    given.pop("validation", None)
    made: dict[str, Callable[[str, Any], Any]] = {
        "model": lambda key, one: _model(key, one),
        "loss": lambda key, one: _by_name(key, one, _loss),
        "optimizer": lambda key, one: maker(one, key, "the model's parameters"),
        "lr_scheduler": lambda key, one: maker(one, key, "the optimizer"),
        "metrics": lambda key, one: _by_name(key, one, lambda key, one: thing(one, key)),
        "callbacks": lambda key, all_of: [
            thing(one, f"{key}.{place}") for place, one in enumerate(all_of)
        ],
        "early_stopping": lambda key, one: one.build(),
        "transformation_fn": lambda key, one: function(one, key, "the batch"),
        "train_step": lambda key, one: function(one, key, "the trainer", "the batch"),
        "training_fn": lambda key, one: function(
            one, key, "the trainer", "train_data", "validation_data"
        ),
    }
    given = {name: made[name](name, one) if name in made else one for name, one in given.items()}
    return TrainingPlan(
        **{"feature_cols": settings.feature_cols, "label_cols": settings.label_cols, **given},
        reading=reading,
    )


def put(written: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with other values, by their places: ``optimizer.lr``.

    Raises:
        ConfigError: There is no such place.
    """
    found = dict(written)
    for place, value in values.items():
        first = place.partition(".")[0]
        if first not in PlanSettings.model_fields:
            near = did_you_mean(first, PlanSettings.model_fields)
            raise ConfigError(f"{place} is no setting of the training{near}")
        found = _put_one(found, place, place, value)
    return found


def flat(written: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by their places; what is named stands at its own place."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        place = before.rstrip(".") if name == CLASS else f"{before}{name}"
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            value = dict(zip(map(str, range(len(value))), value, strict=True))
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{place}.")
        else:
            found[place] = value
    return found


def _put_one(written: Mapping[str, Any], path: str, place: str, value: Any) -> dict[str, Any]:
    first, dot, rest = path.partition(".")
    if not dot:
        return {**written, first: value}
    below = written.get(first, {})
    if isinstance(below, str):
        below = {CLASS: below}
    if not isinstance(below, Mapping):
        raise ConfigError(
            f"{place} leads to nothing: {first} is {below!r:.80}, which has no parts; give "
            f"{first} itself."
        )
    return {**written, first: _put_one(below, rest, place, value)}


def _model(key: str, written: Any) -> Maker:
    if not isinstance(written, list):
        return maker(written, key)
    layers = [maker(one, f"{key}.{place}") for place, one in enumerate(written)]
    return Maker(sequential, {"layers": layers})


def _loss(key: str, written: Any) -> Any:
    return function(written, key, "the output", "the label")


def _by_name(key: str, written: Any, make: Any) -> Any:
    if is_named(written):
        return make(key, written)
    return {name: _by_name(f"{key}.{name}", one, make) for name, one in written.items()}
