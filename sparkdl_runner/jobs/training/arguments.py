"""Whether a training function takes the arguments that its settings give it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.launch.driver.calls.call import check_call

_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def takes(main: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of this name, as far as that is known."""
    known = _parameters(main)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return not known or takes_any or name in known


def check_names(main: Callable[..., Any], names: Sequence[str], place: str) -> None:
    """Refuses arguments that the function does not have, and too few of them.

    Args:
        main: The function.
        names: Of all arguments that it will be given.
        place: What a person calls the function.

    Raises:
        ConfigError: It cannot be called so.
    """
    for name in names:
        if not takes(main, name):
            near = did_you_mean(name, _parameters(main))
            raise ConfigError(f"{place} has no argument {name!r}{near}")
    try:
        check_call(main, **dict.fromkeys(names))
    except TypeError as error:
        message = str(error).replace("given to run()", "of this configuration")
        raise ConfigError(
            f"{message.rstrip('.')}; its arguments are the keys of data and hyperparameters, and "
            "checkpoint_url where that is given."
        ) from None


def check_kinds(
    main: Callable[..., Any], given: Mapping[str, Any], place: str, key: str = "hyperparameters"
) -> None:
    """Refuses a text for a number.

    What a function takes is what its annotations say, or the defaults of arguments without one.

    Args:
        main: The function.
        given: Its arguments, by name.
        place: What a person calls the function.
        key: Where in the settings they are.

    Raises:
        ConfigError: A value is of another kind.
    """
    parameters = _parameters(main)
    try:
        hints = typing.get_type_hints(main)
    except Exception:  # They may name what is imported for type checkers only.
        hints = {}
    for name, value in given.items():
        if name not in parameters or value is None:
            continue
        kind = _kind(hints.get(name), parameters[name].default)
        if kind is not None and not _is_of(value, kind):
            raise ConfigError(
                f"{key}.{name} is {value!r}; {place} takes {_WORDS[kind]} there "
                f"({parameters[name]})."
            )


def _parameters(main: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(main).parameters
    except (TypeError, ValueError):
        return {}  # Some built-in callables have no signature.


def _kind(hint: Any, default: Any) -> type | None:
    """The type that an argument takes, if that is certain."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        hint = options[0] if len(options) == 1 else object
    if hint is None and type(default) in (int, float):
        return float  # A default of 1 may stand for any number.
    if hint is None and type(default) is bool:
        return bool
    return hint if hint in _WORDS else None


def _is_of(value: Any, kind: type) -> bool:
    if kind is bool:
        return not isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind is float and isinstance(value, float))
