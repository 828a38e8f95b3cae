"""Values of Params in a few words: for people, and for the parameters of an MLflow run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

_MOST_CHARACTERS = 200


def described(value: Any) -> str:
    """One line, however long the value's own text is."""
    text = _text(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def parameters(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as parameters of an MLflow run: those of a partial or a dataclass one by one."""
    found = {}
    for name, value in values.items():
        if isinstance(value, functools.partial):
            found[name] = described(value.func)
            inner = {str(place): one for place, one in enumerate(value.args)} | value.keywords
            found.update(parameters({f"{name}.{key}": one for key, one in inner.items()}))
        elif value is not None:
            found[name] = described(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, functools.partial):
        arguments = [_text(one) for one in value.args]
        arguments += [f"{name}={_text(one)}" for name, one in value.keywords.items()]
        return f"{_text(value.func)}({', '.join(arguments)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {_text(one)}" for key, one in value.items()) + "}"
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
        count = sum(one.numel() for one in value.parameters())
    except (ValueError, TypeError):  # It is unknown for lazy modules.
        return type(value).__name__
    if not count:
        return " ".join(repr(value).split())
    return f"{type(value).__name__} of {count:,} parameters"
