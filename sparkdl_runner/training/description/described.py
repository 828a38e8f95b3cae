"""Values of Params in a few words: for people, and for the parameters of an MLflow run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_CHARACTERS = 200


def described(value: Any) -> str:
    """One line, however long the value's own text is."""
    text = _text(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def parameters(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as parameters of an MLflow run: those of a partial or a dataclass one by one."""
    texts = {}
    for name, value in values.items():
        if isinstance(value, functools.partial):
            texts[name] = described(value.func)
            inner = {
                str(place): argument for place, argument in enumerate(value.args)
            } | value.keywords
            texts.update(parameters({f"{name}.{key}": argument for key, argument in inner.items()}))
        elif value is not None:
            texts[name] = described(value)
    return texts


def told_apart(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each of several sets of values: those that differ, as ``lr=0.1 epochs=2``."""
    all_texts = [parameters(values) for values in given]
    names = list(dict.fromkeys(name for texts in all_texts for name in texts))
    differing = [
        name for name in names if len({texts.get(name) for texts in all_texts}) > 1
    ] or names
    last = [name.rpartition(".")[2] for name in differing]
    shown = {
        name: short if last.count(short) == 1 else name
        for name, short in zip(differing, last, strict=True)
    }
    return [
        pairs({shown[name]: texts[name] for name in differing if name in texts})
        for texts in all_texts
    ]


def pairs(values: Mapping[str, Any]) -> str:
    """Values by name in one line, which is short enough for the name of a run."""
    shown = {
        name: f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
        for name, value in values.items()
    }
    text = " ".join(f"{name}={value}" for name, value in shown.items())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def maker_of(model: Any) -> Any:
    """The class or function that makes a network, whatever arguments it is given."""
    while (inner := getattr(model, "func", getattr(model, "function", None))) is not None:
        model = inner
    return model if hasattr(model, "__qualname__") else type(model)


def _text(value: Any) -> str:
    if isinstance(value, functools.partial):
        arguments = [_text(argument) for argument in value.args]
        arguments += [f"{name}={_text(argument)}" for name, argument in value.keywords.items()]
        return f"{_text(value.func)}({', '.join(arguments)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _changed_fields(value)
    if hasattr(value, "parameters") and hasattr(value, "forward") and not isinstance(value, type):
        return _module(value)
    if callable(value):
        return getattr(value, "__qualname__", None) or f"{type(value).__name__}()"
    return " ".join(str(value).split())


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _changed_fields(value: Any) -> str:
    """The fields that differ from their defaults, without those hidden from the repr."""
    changed = [
        f"{field.name}={_text(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.init and field.repr and getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def _module(value: Any) -> str:
    try:
        count = sum(parameter.numel() for parameter in value.parameters())
    except (ValueError, TypeError):  # It is unknown for lazy modules.
        return type(value).__name__
    if not count:
        return " ".join(repr(value).split())
    return f"{type(value).__name__} of {count:,} parameters"
