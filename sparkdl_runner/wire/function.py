"""The user's function on its way to the ranks, and its value or exception on the way back."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pickle
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from sparkdl_runner.errors import NotPicklableError, ResultTooLargeError
from sparkdl_runner.world import World

# The errors that pack_result raises.
RESULT_REFUSALS = (NotPicklableError, ResultTooLargeError)
# A larger exception is not sent; its text and traceback are sent in any case.
MAX_EXCEPTION_BYTES = 16 << 20


def check_call(main: object, /, *args: Any, **kwargs: Any) -> None:
    """Checks that ``main(*args, **kwargs)`` can be called at all, before anything is started.

    Raises:
        TypeError: ``main`` is no callable, lacks an argument, or does not take one of these.
    """
    if not callable(main):
        raise TypeError(
            f"main is {main!r}, a {type(main).__name__}; it must be a function that takes the "
            "arguments given to run()."
        )
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):
        return  # Some built-in callables have none; the call itself will show what is wrong.
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} by position"] * bool(args) + list(kwargs))
        raise TypeError(
            f"{_name(main)}{signature} cannot be called with the arguments given to run() "
            f"({given or 'none'}): {error}."
        ) from None


@dataclass(frozen=True)
class EachRanksValue:
    """A rank's value, if every rank's value is wanted."""

    value: Any


def on_each_rank(main: Callable[..., Any]) -> Callable[..., EachRanksValue]:
    """Makes of ``main`` a function that gives every rank's value to the driver."""

    @functools.wraps(main)
    def call(*args: Any, **kwargs: Any) -> EachRanksValue:
        return EachRanksValue(main(*args, **kwargs))

    return call


def pack(main: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bytes:
    """Pickles ``main`` and its arguments, by value where they are not importable.

    Raises:
        NotPicklableError: It names the variable that is in the way.
    """
    try:
        return bytes(cloudpickle.dumps((main, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        culprit = _find_unpicklable(main, args, kwargs)
        raise NotPicklableError(
            f"{_name(main)} cannot be sent to the ranks: {culprit or 'it'} cannot be pickled "
            f"({type(error).__name__}: {_first_line(error)}). Create it inside the function, or "
            "pass what it is made from as an argument."
        ) from error


def call(packed: bytes) -> Any:
    """Unpickles what ``pack`` made and calls it, in the worker.

    Raises:
        RuntimeError: It cannot be unpickled here, which is nearly always a module that is
            missing on this host.
    """
    try:
        main, args, kwargs = cloudpickle.loads(packed)
    except Exception as error:
        raise RuntimeError(
            f"The function could not be unpickled in the worker ({type(error).__name__}: {error})."
            " If it refers to a module of your own, that module must be importable on every host:"
            " pass it with --py-files or sc.addPyFile, or define the function in the notebook."
        ) from error
    return main(*args, **kwargs)


def pack_result(value: Any, world: World, most_bytes: int | None = None) -> bytes:
    """Pickles rank 0's value, and another rank's only if the driver wants every rank's value.

    Args:
        value: What the function returned.
        world: The rank's place.
        most_bytes: How much of it can travel; None for any.

    Raises:
        NotPicklableError: The value cannot travel.
        ResultTooLargeError: It is larger than ``most_bytes``.
    """
    if world.rank != 0 and not isinstance(value, EachRanksValue):
        return b""
    try:
        packed = bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise NotPicklableError(
            f"The value that rank {world.rank} returned, a {_type_name(value)}, cannot be pickled "
            f"({type(error).__name__}: {_first_line(error)}). Return plain values or tensors, for "
            "example model.state_dict() in place of an object that holds open files or processes."
        ) from error
    if most_bytes is not None and isinstance(value, EachRanksValue):
        most_bytes //= world.size
    if most_bytes is not None and len(packed) > most_bytes:
        raise ResultTooLargeError(
            f"The value that rank {world.rank} returned takes {len(packed):,} bytes, and Spark "
            f"carries at most {most_bytes:,}. Write large things to shared storage and return "
            "their path; or raise what limits Spark here: spark.driver.maxResultSize, or eight "
            "times the value for spark.driver.memory and spark.executor.memory."
        )
    return packed


def unpack_result(packed: bytes) -> Any:
    """Unpickles a rank's value, on the driver.

    Raises:
        NotPicklableError: The driver lacks what the value is made of.
    """
    try:
        return cloudpickle.loads(packed)
    except Exception as error:
        raise NotPicklableError(
            "The value that a rank returned cannot be unpickled on the driver "
            f"({type(error).__name__}: {_first_line(error)}). Return plain values, or tensors "
            "moved to the CPU, or install on the driver what the value needs."
        ) from error


def pack_exception(error: BaseException) -> bytes:
    """Pickles an exception for the driver; empty if it cannot be pickled, or is too large."""
    try:
        packed = bytes(cloudpickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL))
        # Exceptions with arguments of their own often pickle and then fail to unpickle.
        cloudpickle.loads(packed)
        return packed if len(packed) <= MAX_EXCEPTION_BYTES else b""
    except Exception:
        return b""


def unpack_exception(packed: bytes) -> BaseException | None:
    """Unpickles what ``pack_exception`` made, or None where that is impossible here."""
    try:
        error = cloudpickle.loads(packed)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def _name(main: object) -> str:
    while isinstance(main, functools.partial):
        main = main.func
    return getattr(main, "__name__", type(main).__name__)


def _type_name(value: Any) -> str:
    return type(value.value if isinstance(value, EachRanksValue) else value).__name__


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _find_unpicklable(
    main: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Names the first thing that ``main(*args, **kwargs)`` needs and that cannot be pickled."""
    for description, value in ingredients(main, *args, **kwargs):
        if not _is_picklable(value):
            for field in _fields(value):
                part = getattr(value, field)
                if not _is_picklable(part):
                    description, value = f"the field {field!r} of {description}", part
                    break
            return f"{description}, a {type(value).__module__}.{type(value).__qualname__},"
    return None


def _fields(value: Any) -> list[str]:
    """The fields of a dataclass, such as the plan of a fit."""
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return [field.name for field in dataclasses.fields(value)] if is_instance else []


def _is_picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def arguments(main: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, those among them that are as by default."""
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
    while isinstance(main, functools.partial):
        main = main.func
    main = getattr(main, "__func__", main)
    waiting: list[Any] = [main, type(main).__call__]
    known: list[types.FunctionType] = []
    while waiting:
        one = waiting.pop()
        if not isinstance(one, types.FunctionType) or one in known:
            continue
        if known and one.__module__ != known[0].__module__:
            continue
        known.append(one)
        names = _names(one.__code__)
        if any(name.partition(".")[0] == package for name in names):
            return True
        waiting += [one.__globals__.get(name) for name in names]
        waiting += [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
    return False


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
