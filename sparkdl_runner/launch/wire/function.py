"""The user's function in a rank, and its value or exception on the way back."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import cloudpickle

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.rank.world import World

# A larger exception is not sent; its text and traceback are sent in any case.
MAX_EXCEPTION_BYTES = 16 << 20
# A longer text would not fit into one frame once it is quoted.
MAX_PLAIN_CHARACTERS = 1 << 18


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


def call(packed: bytes) -> Any:
    """Unpickles what ``driver.calls.call.pack`` made and calls it, in the worker.

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


def pack_result(value: Any, world: World) -> bytes:
    """Pickles rank 0's value, and another rank's only if the driver wants every rank's value.

    Args:
        value: What the function returned.
        world: The rank's place.

    Raises:
        NotPicklableError: The value cannot travel.
    """
    if world.rank != 0 and not isinstance(value, EachRanksValue):
        return b""
    try:
        return bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise NotPicklableError(
            f"The value that rank {world.rank} returned, a {_type_name(value)}, cannot be pickled "
            f"({type(error).__name__}: {first_line(error)}). Return plain values or tensors, for "
            "example model.state_dict() in place of an object that holds open files or processes."
        ) from error


def plain_result(value: Any, world: World) -> str:
    """The value as JSON, as far as the driver wants it; empty if it is not plain, or is long.

    Pickles come by Spark's own transport only. JSON may come by the channel to the driver as well.

    Args:
        value: What the function returned.
        world: The rank's place.
    """
    of_each = isinstance(value, EachRanksValue)
    if of_each:
        value = value.value
    elif world.rank != 0:
        value = None
    try:
        text = json.dumps({"value": value, "of_each": of_each}) if _is_plain(value) else ""
    except (ValueError, RecursionError):  # It holds itself, or an endless number of levels.
        return ""
    return text if len(text) <= MAX_PLAIN_CHARACTERS else ""


def pack_plain_result(text: str, world: World) -> bytes:
    """What ``pack_result`` would have made of the value, made on the driver.

    Raises:
        ValueError: The text is not one of ``plain_result``.
    """
    content = json.loads(text)
    if not isinstance(content, dict) or content.keys() != {"value", "of_each"}:
        raise ValueError(f"no value of a rank: {text[:100]!r}")
    value = content["value"]
    return pack_result(EachRanksValue(value) if content["of_each"] else value, world)


def unpack_result(packed: bytes | BinaryIO) -> Any:
    """Unpickles a rank's value, on the driver.

    Args:
        packed: What ``pack_result`` made, or a file of it.

    Raises:
        NotPicklableError: The driver lacks what the value is made of.
    """
    try:
        is_here = isinstance(packed, bytes)
        return cloudpickle.loads(packed) if is_here else cloudpickle.load(packed)
    except Exception as error:
        raise NotPicklableError(
            "The value that a rank returned cannot be unpickled on the driver "
            f"({type(error).__name__}: {first_line(error)}). Return plain values, or tensors "
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


def _type_name(value: Any) -> str:
    return type(value.value if isinstance(value, EachRanksValue) else value).__name__


def _is_plain(value: Any) -> bool:
    """Whether JSON gives back the very same: of other types, tuples and keys, it would not."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)
