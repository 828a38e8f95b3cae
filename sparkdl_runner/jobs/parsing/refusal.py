"""One sentence for settings that pydantic has refused, by the keys that the person wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from sparkdl_runner.base.redaction import Redactor

OWN_WORDS = "own_words"
"""The type of an error whose sentence is whole, and names its key."""

_EXPECTED = {
    "dict_type": "it should be keys and their values",
    "list_type": "it should be a list",
    "string_type": "it should be a text",
}


def sentence(error: pydantic.ValidationError, given: Mapping[str, Any]) -> str:
    """Describes the first error.

    Args:
        error: What pydantic has found.
        given: The settings that it was given.
    """
    findings: list[Any] = list(error.errors())
    first = findings[0]
    keys = _keys(first["loc"], given)
    if first["type"] == OWN_WORDS:
        return str(first["msg"])
    if first["type"] == "missing":
        return f"{_dotted((*keys, first['loc'][-1]))} is missing."
    if first["loc"][-1:] == ("[key]",):
        key = _shown(first["input"])
        return f"{_dotted(keys[:-1])} has the key {key}, which is no text: put it in quotes."
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        text = f"{_dotted(keys)}: {text}" if keys else text
    else:
        # Where several types are allowed, pydantic reports an error for each.
        expected = dict.fromkeys(
            _expected(finding)
            for finding in findings
            if finding["type"] != "value_error" and _keys(finding["loc"], given) == keys
        )
        if "it should be a valid number" in expected:
            expected.pop("it should be a valid integer", None)
        text = " or ".join(expected).replace(" or it should be ", ", or ")
        text = f"{_dotted(keys)} is {_shown(first['input'])}; {text}"
    return text if text.endswith((".", "?")) else f"{text}."


def _keys(location: tuple[int | str, ...], given: Any) -> tuple[int | str, ...]:
    """The keys that lead to a place.

    A location also has names that pydantic gives to the types that a value may have.
    """
    keys: list[int | str] = []
    for part in location:
        is_index = isinstance(given, list) and isinstance(part, int)
        if is_index or (isinstance(given, Mapping) and part in given):
            given = given[part]
            keys.append(part)
    return tuple(keys)


def _expected(finding: Any) -> str:
    kind, context = finding["type"], finding.get("ctx", {})
    if kind == "too_short":
        least = context["min_length"]
        return f"it should hold at least {least} {'entry' if least == 1 else 'entries'}"
    if kind == "literal_error":
        return f"it should be {context['expected'].replace('False', 'false')}"
    return _EXPECTED.get(kind, str(finding["msg"]).replace("Input should", "it should"))


def _dotted(keys: tuple[int | str, ...]) -> str:
    return ".".join(map(str, keys))


def _shown(value: Any) -> str:
    return Redactor()(repr(value))[:200]
