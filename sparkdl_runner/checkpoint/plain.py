"""What may be saved: what ``torch.load(weights_only=True)`` gives back, and JSON."""

from __future__ import annotations

import io
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any


def require_loadable(where: str, value: Any) -> None:
    """Refuses what could be saved and not be loaded again without running code from the file.

    Args:
        where: What ``value`` is called.
        value: Tensors, numbers, text, and dicts and sequences of them.

    Raises:
        TypeError: Names the entry that is something else.
    """
    import torch

    kind = type(value)
    if value is None or kind in (bool, int, float, str, torch.Tensor, torch.nn.Parameter):
        return
    if kind in (dict, OrderedDict):
        for key, entry in value.items():
            require_loadable(f"a key of {where}", key)
            require_loadable(f"{where}[{key!r}]", entry)
        return
    if kind in (list, tuple):
        for number, entry in enumerate(value):
            require_loadable(f"{where}[{number}]", entry)
        return
    try:
        written = io.BytesIO()
        torch.save(value, written)
        written.seek(0)
        torch.load(written, weights_only=True, map_location="cpu")
    except Exception as error:
        name = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else (f"{kind.__module__}.{kind.__qualname__}")
        )
        raise TypeError(
            f"{where} is a {name}, which a checkpoint cannot hold: it could be loaded again only "
            "by running code from the file. Save tensors, numbers, text, and dicts and lists of "
            "them, such as its state_dict()."
        ) from error


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
