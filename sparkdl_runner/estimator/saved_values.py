"""Values of Params as JSON, from which they can be made again.

Functions and classes are written by reference (``torch.optim:Adam``), a partial by what it holds,
losses and metrics by the arguments of their classes. What has no such form is pickled. All of these
are code: a file may name any function, which is then called here or by ``fit``. So without trust
only plain data are read: numbers, texts, and lists and mappings of them.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import cloudpickle

from sparkdl_runner.estimator.trust import how_to_trust
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.tensors.saved import UntrustedModelError, imported, reference_of
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.training.description.described import described
from sparkdl_runner.training.loop.early_stopping import EarlyStopping

_PLAIN = (type(None), bool, int, float, str)
_SETTINGS = (EarlyStopping, RunConfig, Tracking)


class _NoPlainFormError(Exception):
    """A value can only be pickled."""


def encode(name: str, value: Any) -> Any:
    """Returns plain JSON; warns where it holds a pickle."""
    try:
        return _encode(value)
    except _NoPlainFormError:
        pass
    warnings.warn(
        f"{name} ({described(value)}) is saved as a pickle, which maybe no other version of Python "
        "or torch opens again. A function or class of a module that can be imported, or "
        "functools.partial of one, is saved by its name.",
        stacklevel=2,
    )
    return {"pickle": base64.b64encode(cloudpickle.dumps(value)).decode()}


def decode(name: str, value: Any, *, trust: bool) -> Any:
    """Makes the value of what ``encode`` returned.

    Raises:
        UntrustedModelError: It is not plain data, and the caller did not allow to open it.
        ValueError: It refers to something that cannot be imported here, or is damaged.
    """
    if not trust and (kind := _code_in(value)):
        raise UntrustedModelError(
            f"{name} was saved as {kind}, which can run any code when it is opened or used. If you "
            f"know who saved it, {how_to_trust('TorchEstimator')}."
        )
    try:
        if not isinstance(value, dict) or "pickle" not in value:
            return _decode(value)
        return cloudpickle.loads(base64.b64decode(value["pickle"]))
    except Exception as error:
        raise ValueError(
            f"{name} cannot be made again of what was saved ({type(error).__name__}: {error}): "
            "install what it refers to, in the version with which it was saved, or set it anew."
        ) from error


def _encode(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, functools.partial):
        return {
            "partial": _encode(value.func),
            "arguments": [_encode(argument) for argument in value.args],
            "keywords": {name: _encode(argument) for name, argument in value.keywords.items()},
        }
    reference = reference_of(value)
    if reference is not None:
        return {"reference": reference}
    return _encode_object(value)


def _encode_object(value: Any) -> Any:
    kind = reference_of(type(value))
    if kind is None or not _can_be_called(type(value)):
        raise _NoPlainFormError
    arguments = {}
    if isinstance(value, _SETTINGS):
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if not field.init or held == field.default:
                continue
            if not field.repr:
                warnings.warn(
                    f"{field.name} of {type(value).__name__} is not saved, as it may hold secrets: "
                    "set it anew after loading.",
                    stacklevel=4,
                )
                continue
            arguments[field.name] = _encode(held)
        return {"object": kind, "arguments": arguments}
    for parameter in inspect.signature(type(value)).parameters.values():
        if hasattr(value, parameter.name):
            arguments[parameter.name] = _encode(getattr(value, parameter.name))
    encoded = {"object": kind, "arguments": arguments}
    try:
        made_again = _decode(encoded)
    except Exception as error:
        raise _NoPlainFormError from error
    # Something else may make it what it is, such as trained weights.
    if not _is_same(value, made_again):
        raise _NoPlainFormError
    return encoded


def _is_same(one: Any, other: Any) -> bool:
    from torch import Tensor, nn

    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, nn.Module):
        return _is_same(vars(one), vars(other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if callable(one):
        return str(getattr(one, "__qualname__", one)) == str(getattr(other, "__qualname__", other))
    return bool(one == other)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_decode(item) for item in value["tuple"])
    if "dict" in value:
        return {_decode(key): _decode(item) for key, item in value["dict"]}
    if "partial" in value:
        keywords = {name: _decode(argument) for name, argument in value["keywords"].items()}
        function = _decode(value["partial"])
        return functools.partial(function, *map(_decode, value["arguments"]), **keywords)
    if "reference" in value:
        return _imported(value["reference"])
    kind = _imported(value["object"])
    if not _can_be_called(kind):
        raise ValueError(f"{value['object']} is not among the classes that are called here")
    return kind(**{name: _decode(argument) for name, argument in value["arguments"].items()})


def _code_in(value: Any) -> str | None:
    """What is not plain data in an encoded value, in words; None where it is plain."""
    if isinstance(value, dict) and set(value) not in ({"tuple"}, {"dict"}):
        kinds = {"pickle": "a pickle", "partial": "a partial", "reference": "a name to import"}
        return next((kinds[kind] for kind in kinds if kind in value), "an object")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_code_in, inner)), None)


def _can_be_called(kind: Any) -> bool:
    """Whether a value is written as a call of this class. Others are pickled."""
    from torch import nn

    return isinstance(kind, type) and issubclass(kind, (nn.Module, *_SETTINGS))


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    for kind in _SETTINGS:  # Their modules have moved since some estimators were saved.
        if module.startswith("sparkdl_runner.") and name == kind.__name__:
            return kind
    return imported(reference)
