"""The parts of a call: its arguments by name, and all that its function refers to."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


def arguments(main: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    try:
        bound = inspect.signature(main).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)  # Some callables have no signature.
    bound.apply_defaults()
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name)
    return named


def ingredients(main: object, /, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a call is made of, with words for each that hold its name in quotes."""
    return _ingredients(main, args, kwargs, seen=set())


def refers_to(main: object, package: str) -> bool:
    """Whether a function names a package, or one of its helper functions in its module does."""
    return any(
        name.partition(".")[0] == package
        for function in functions_of(main)
        for name in _names(function.__code__)
    )


def functions_of(main: object) -> Iterator[types.FunctionType]:
    """Yields a function, and then its helper functions in its module."""
    while isinstance(main, functools.partial):
        main = main.func
    main = getattr(main, "__func__", main)
    waiting: list[Any] = [main, type(main).__call__]
    known: list[types.FunctionType] = []
    while waiting:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType) or function in known:
            continue
        if known and function.__module__ != known[0].__module__:
            continue
        known.append(function)
        yield function
        waiting += [function.__globals__.get(name) for name in _names(function.__code__)]
        waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _ingredients(
    main: object, args: Sequence[Any], kwargs: Mapping[str, Any], seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yields what a call is made of, with words for each; innermost things first."""
    if id(main) in seen:
        return
    seen.add(id(main))
    for name, value in [*_by_name(main, args), *kwargs.items()]:
        yield f"the argument {name!r}", value
    if isinstance(main, functools.partial):
        yield from _ingredients(main.func, main.args, main.keywords, seen)
        return
    if isinstance(main, types.MethodType):
        for name, value in getattr(main.__self__, "__dict__", {}).items():
            yield f"the attribute {name!r} of the method's object", value
        main = main.__func__
    if not isinstance(main, types.FunctionType):
        for name, value in getattr(main, "__dict__", {}).items():
            yield f"the attribute {name!r} of main", value
        return
    cells = zip(main.__code__.co_freevars, main.__closure__ or (), strict=True)
    enclosing = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    names = _names(main.__code__)
    used = {name: value for name, value in main.__globals__.items() if name in names}
    for words, values in (
        ("the enclosing function's variable", enclosing),
        ("the global variable", used),
    ):
        for name, value in values.items():
            if isinstance(value, types.FunctionType):
                # A helper function may be the one that refers to it.
                yield from _ingredients(value, (), {}, seen)
            yield f"{words} {name!r}", value
    for value in (*(main.__defaults__ or ()), *(main.__kwdefaults__ or {}).values()):
        yield "a default argument", value


def _by_name(main: Any, args: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """The arguments given by position, with the names that the function has for them."""
    try:
        return inspect.signature(main).bind_partial(*args).arguments.items()
    except (TypeError, ValueError):  # Some built-in callables have no signature.
        return ((str(position), value) for position, value in enumerate(args))


def _names(code: types.CodeType) -> set[str]:
    """The names that a function refers to, also in its comprehensions and inner functions."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is the test
    except ValueError:
        return False
    return True
