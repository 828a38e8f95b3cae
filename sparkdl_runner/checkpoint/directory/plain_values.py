"""Metrics and other plain values, which come back from JSON as they were."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Metrics as floats by name.

    Raises:
        TypeError: One is no number.
    """
    plain = {}
    for name, value in (metrics or {}).items():
        try:
            plain[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"metrics[{name!r}] is {value!r}; expected one number.") from None
    return plain


def plain_json(where: str, value: Any) -> Any:
    """``value`` as it comes back from JSON.

    Raises:
        TypeError: It would come back as something else, or not at all.
    """
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{where} cannot be written as JSON: {error}.") from None
    if not _same(value, plain):
        raise TypeError(
            f"{where} would come back from JSON as something else: it may hold dicts with text as "
            "keys, lists, text, numbers, booleans and None."
        )
    return plain


def _same(value: Any, plain: Any) -> bool:
    if isinstance(value, Mapping):
        return (
            isinstance(plain, dict)
            and value.keys() == plain.keys()
            and all(_same(value[key], plain[key]) for key in plain)
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(plain, list) and len(value) == len(plain) and all(map(_same, value, plain))
        )
    if isinstance(value, float) and math.isnan(value):
        return isinstance(plain, float) and math.isnan(plain)
    return bool(value == plain)
