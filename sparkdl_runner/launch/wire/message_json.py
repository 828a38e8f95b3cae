"""Messages as JSON: each field by its type."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.failure_report import from_report, to_report
from sparkdl_runner.launch.wire.messages import AGENT_TO_DRIVER, Message, Table
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.world import Peer, World

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_KNOWN: dict[type[Message], dict[str, Codec]] = {}


def encode(message: Message) -> dict[str, Any]:
    """Makes plain values of a message."""
    kind = type(message)
    values = {name: to_json(getattr(message, name)) for name, (to_json, _) in _fields(kind).items()}
    return {"kind": kind.__name__, **values}


def decode(values: Mapping[str, Any], table: Table) -> Message:
    """Makes a message of plain values.

    Args:
        values: Made by ``encode`` at the other end, which may be hostile.
        table: What that end may send.

    Raises:
        ValueError: They are no message of the table.
    """
    try:
        given = dict(values)
        message = table[given.pop("kind")]
        codecs = _fields(message)
        return message(**{name: codecs[name][1](value) for name, value in given.items()})
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"this end may not send such a message: {error!r:.200}") from error


def _fields(message: type[Message]) -> dict[str, Codec]:
    """How each field of a kind of message is written and read."""
    if (known := _KNOWN.get(message)) is None:
        known = _KNOWN[message] = {field.name: _CODECS[field.type] for field in fields(message)}
    return known


def _same(value: Any) -> Any:
    return value


def _strings(values: list[Any]) -> list[str]:
    return [str(value) for value in values]


def _numbers(values: list[Any]) -> list[int]:
    return [int(value) for value in values]


def _tuple(values: list[Any]) -> tuple[int, ...]:
    return tuple(_numbers(values))


_CODECS: dict[object, Codec] = {
    str: (_same, str),
    int: (_same, int),
    float: (_same, float),
    bool: (_same, bool),
    list[str]: (_same, _strings),
    list[int]: (_same, _numbers),
    tuple[int, ...]: (_same, _tuple),
    dict[str, Any]: (_same, dict),
    dict[str, float]: (_same, dict),
    bytes: (lambda data: base64.b64encode(data).decode("ascii"), base64.b64decode),
    World: (World.to_json, World.from_json),
    Outcome: (to_report, from_report),
    Peer: (Peer.to_json, Peer.from_json),
    Assignment: (Assignment.to_json, Assignment.from_json),
    Message: (encode, lambda values: decode(values, AGENT_TO_DRIVER)),
}
