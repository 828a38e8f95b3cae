"""From the settings of a training without a function to its plan, and each setting by its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import Settings, todays_keys
from sparkdl_runner.jobs.training.named_things import CLASS, function, is_named, maker, thing
from sparkdl_runner.jobs.training.plan_settings import EarlyStoppingSettings, PlanSettings
from sparkdl_runner.training.description import kinds
from sparkdl_runner.training.description.maker import Maker, sequential
from sparkdl_runner.training.description.options import OPTIONS, TrainingPlan, checked


def plan(settings: Settings) -> TrainingPlan:
    """The training that ``PlanSettings`` describe.

    Raises:
        ConfigError: Something that they name is not there, cannot be called with its arguments,
            or does not fit the rest.
    """
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    given = {name: _made(name, value) for name, value in given.items() if value is not None}
    try:
        return checked(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _made(key: str, written: Any) -> Any:
    """The value of an option, of what the settings say."""
    match OPTIONS[key].metadata["kind"]:
        case kinds.Factory(of=of):
            return maker(written, key, of)
        case kinds.Function(given=given):
            return function(written, key, *given)
        case kinds.model:
            return _model(key, written)
        case kinds.loss:
            return _by_name(key, written, _loss)
        case kinds.metrics:
            return _by_name(key, written, lambda key, named: thing(named, key))
        case kinds.callbacks:
            written = written if isinstance(written, list) else [written]
            return [thing(named, f"{key}.{place}") for place, named in enumerate(written)]
    return written.build() if isinstance(written, EarlyStoppingSettings) else written


def put(written: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with other values, by their places: ``optimizer.lr``.

    Raises:
        ConfigError: There is no such place.
    """
    merged = dict(written)
    for place, value in todays_keys(values, PlanSettings, "hyperparameters").items():
        first = place.partition(".")[0]
        if first not in PlanSettings.model_fields:
            near = did_you_mean(first, PlanSettings.model_fields)
            raise ConfigError(f"{place} is no setting of the training{near}")
        merged = _put_one(merged, place, place, value)
    return merged


def flat(written: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by their places; what is named stands at its own place."""
    by_place: dict[str, Any] = {}
    for name, value in written.items():
        place = before.rstrip(".") if name == CLASS else f"{before}{name}"
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            value = dict(zip(map(str, range(len(value))), value, strict=True))
        if isinstance(value, Mapping) and value:
            by_place |= flat(value, f"{place}.")
        else:
            by_place[place] = value
    return by_place


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
    layers = [maker(layer, f"{key}.{place}") for place, layer in enumerate(written)]
    return Maker(sequential, {"layers": layers})


def _loss(key: str, written: Any) -> Any:
    return function(written, key, "the output", "the label")


def _by_name(key: str, written: Any, make: Any) -> Any:
    if is_named(written):
        return make(key, written)
    return {name: _by_name(f"{key}.{name}", value, make) for name, value in written.items()}
