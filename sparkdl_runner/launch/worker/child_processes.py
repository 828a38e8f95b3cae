"""Sends a rank's functions and classes to its child processes by value, where pickle refuses them.

What came into a rank by value, as all of a notebook does, has a name that leads nowhere there.
pickle finds things by their names, so ``multiprocessing`` could not send them to a child, whatever
its start method; in the process that they came from it could, at least by fork.
"""

from __future__ import annotations

import importlib
import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from sparkdl_runner.launch.wire import by_value

# What cloudpickle's reduction of functions calls, and expects in its pickler.
_OF_FUNCTIONS = ("_function_reduce", "_dynamic_function_reduce", "_function_getnewargs")


def send_by_value() -> None:
    """Teaches this process's ``multiprocessing`` to do so. Its children learn it by what they get.

    The pickler itself is changed, since ``multiprocessing`` and torch have it by many names.
    """
    if "reducer_override" in vars(ForkingPickler):
        return
    pickler: Any = ForkingPickler
    for kind, reduce in cloudpickle.Pickler.dispatch_table.items():
        pickler._extra_reducers.setdefault(kind, reduce)
    pickler.register(types.CodeType, _reduce_code)
    for name in _OF_FUNCTIONS:
        setattr(pickler, name, getattr(cloudpickle.Pickler, name))
    pickler.globals_ref = property(_globals_ref)
    pickler.reducer_override = _reduce


def _reduce(pickler: Any, value: Any) -> Any:
    is_named = isinstance(value, (type, types.FunctionType))
    if not is_named or _is_importable(value):
        return NotImplemented
    return cloudpickle.Pickler.reducer_override(pickler, value)


def _is_importable(value: Any) -> bool:
    """Whether its name leads to it, as pickle demands."""
    try:
        target = importlib.import_module(value.__module__)
        for name in value.__qualname__.split("."):
            target = getattr(target, name)
    except Exception:
        return False
    return target is value


def _globals_ref(pickler: Any) -> dict[int, dict[str, Any]]:
    """By which functions of one module that are pickled together share their globals again."""
    shared: dict[int, dict[str, Any]] = vars(pickler).setdefault("_globals_ref", {})
    return shared


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    return _make_code, by_value.reduce_code(code)[1]


def _make_code(parts: tuple[Any, ...], filename: str, source: str) -> types.CodeType:
    # A child by forkserver or spawn knows nothing, and sends its results back by value.
    send_by_value()
    return by_value.make_code(parts, filename, source)
