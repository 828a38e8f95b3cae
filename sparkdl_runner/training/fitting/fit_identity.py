"""The identity of a fit, by which a repeated call resumes it: its settings and its data."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl_runner.training.description.options import READING, TrainingPlan

if TYPE_CHECKING:
    from sparkdl_runner.training.fitting.conversions import FitData

_OF_NO_MATTER = {
    *("epochs", "checkpoint_dir", "callbacks", "early_stopping", "batch_size"),
    *("task", "validation", *READING),
}
"""A fit may go on with more epochs, and on other ranks if their global batch is the same.

Which rows are for validation is known by the data, and what the plan says of reading counts whole.
"""


def checkpoint_folder(plan: TrainingPlan, data: FitData, num_proc: int) -> str:
    """The folder in ``checkpoint_dir`` for the checkpoints of this fit alone.

    It is the same for another process with the same settings and the same rows in the same order,
    and another one for any other fit, such as the other ones of a CrossValidator. A function counts
    by its code, a module by its layers and shapes, and not by its weights.
    """
    settings = {
        field.name: _plain(getattr(plan, field.name))
        for field in dataclasses.fields(plan)
        if field.name not in _OF_NO_MATTER
    }
    settings["reading"] = _plain(plan.reading)
    settings["global batch"] = abs(num_proc) * plan.batch_size
    rows = [
        None if converter is None else converter.open()[0].fingerprint
        for converter in (data.train, data.validation)
    ]
    text = json.dumps([settings, rows], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{(plan.checkpoint_dir or '').rstrip('/')}/fit-{digest}"


def _plain(value: Any) -> Any:
    """Plain JSON that is the same in another process."""
    if isinstance(value, (type(None), bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if isinstance(value, functools.partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return [_plain(value.__func__), _plain(value.__self__)]
    if isinstance(value, types.FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        return [value.__qualname__, _of_code(value.__code__), _plain(value.__defaults__), cells]
    kind = _plain(type(value))
    if hasattr(value, "named_parameters") and hasattr(value, "state_dict"):
        shapes = {name: list(parameter.shape) for name, parameter in value.named_parameters()}
        return [kind, repr(value), shapes]
    if hasattr(value, "__qualname__"):
        return [kind, value.__qualname__]
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        return [kind, _plain(value.tolist())]
    return [kind, _plain(getattr(value, "__dict__", {}))]


def _content(cell: Any) -> Any:
    try:
        return _plain(cell.cell_contents)
    except (ValueError, RecursionError):  # An empty cell, or a function that refers to itself.
        return None


def _of_code(code: types.CodeType) -> Any:
    constants = [
        _of_code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return [hashlib.sha256(code.co_code).hexdigest(), list(code.co_names), constants]
