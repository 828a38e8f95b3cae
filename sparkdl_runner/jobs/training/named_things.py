"""Things that settings name: each is imported, and called with what stands beside its name.

A text, ``torch.nn.functional:cross_entropy``, names a class or a function. A mapping gives it
arguments, ``{class: torch.optim:Adam, lr: 1e-3}``; an argument may be such a mapping itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.training.arguments import check_kinds, takes
from sparkdl_runner.jobs.training.entry_point import find_function
from sparkdl_runner.training.description.maker import Maker, made

# No argument of Python's can have this name.
CLASS = "class"


def is_named(written: Any) -> bool:
    """Whether a value of the settings has the form of a named thing."""
    return isinstance(written, str) or (isinstance(written, Mapping) and CLASS in written)


def check_form(written: Any) -> Any:
    """Returns what is written, where it has the form of a named thing.

    Raises:
        ValueError: It has not.
    """
    name = written.get(CLASS) if isinstance(written, Mapping) else written
    if not isinstance(name, str):
        lacks = "has no key class" if isinstance(written, Mapping) else f"is {written!r:.80}"
        raise ValueError(
            f"it {lacks}; it should be module:name, or {{class: module:name}} with the arguments "
            "beside it"
        )
    return written


def maker(written: Any, key: str, *given: str) -> Maker:
    """The maker of an object on each rank: a class, or a function that returns it.

    Args:
        written: As the settings have it.
        key: Where in the settings.
        *given: What it is called with besides, by position.

    Raises:
        ConfigError: It cannot be imported, or not be called so.
    """
    function, arguments = _found(written, key, given)
    return Maker(function, arguments)


def function(written: Any, key: str, *given: str) -> Callable[..., Any]:
    """A function that is called often: itself, or what a class makes once.

    Raises:
        ConfigError: It cannot be imported, or not be called so.
    """
    function, arguments = _found(written, key, given)
    if isinstance(function, type):
        return thing(written, key)  # type: ignore[no-any-return]
    if not arguments:
        return function
    return functools.partial(function, **{name: made(value) for name, value in arguments.items()})


def thing(written: Any, key: str) -> Any:
    """A thing that is made here, and travels to the ranks.

    Raises:
        ConfigError: It cannot be imported or made.
    """
    make = maker(written, key)
    try:
        return make()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise ConfigError(
            f"{key}: {_name(written)} refuses its arguments with {type(error).__name__}: {reason}."
        ) from error


def _found(
    written: Any, key: str, given: tuple[str, ...]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    try:
        target = find_function(_name(written), "class or function")
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    arguments = {}
    if isinstance(written, Mapping):
        arguments = {name: value for name, value in written.items() if name != CLASS}
    is_made_once = isinstance(target, type) and len(given) > 1
    _check(target, arguments, key, _name(written), () if is_made_once else given)
    return target, {name: _nested(value, f"{key}.{name}") for name, value in arguments.items()}


def _name(written: Any) -> str:
    return str(written[CLASS] if isinstance(written, Mapping) else written)


def _nested(value: Any, key: str) -> Any:
    if isinstance(value, Mapping) and CLASS in value:
        return maker(value, key)
    if isinstance(value, list):
        return [_nested(entry, f"{key}.{place}") for place, entry in enumerate(value)]
    return value


def _check(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    key: str,
    place: str,
    given: tuple[str, ...],
) -> None:
    """Refuses arguments that are not there, are missing, or are of another kind."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # Some built-in callables have none.
    for name in arguments:
        if not takes(target, name):
            near = did_you_mean(name, list(signature.parameters)[len(given) :])
            raise ConfigError(f"{key}: {place} has no argument {name!r}{near}")
    try:
        signature.bind(*given, **arguments)
    except TypeError as error:
        besides = f" It is given {' and '.join(given)} first." if given else ""
        raise ConfigError(
            f"{key}: {place}{_short(signature)} cannot be called with "
            f"{', '.join(arguments) or 'no arguments'}: {error}.{besides}"
        ) from None
    check_kinds(target, arguments, place, key)


def _short(signature: inspect.Signature) -> str:
    text = str(signature.replace(return_annotation=inspect.Signature.empty))
    return text if len(text) <= 300 else "(…)"
