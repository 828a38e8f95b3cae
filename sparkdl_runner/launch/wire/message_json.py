"""Messages as JSON, each field by its type; a field of bytes as it is, beside the JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.failure_report import from_report, to_report
from sparkdl_runner.launch.wire.messages import Message, Table
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.world import Peer, World

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_KNOWN: dict[type[Message], tuple[dict[str, Codec], str | None]] = {}


def encode(message: Message) -> tuple[dict[str, Any], bytes]:
    """Makes plain values of a message, and takes its bytes."""
    kind = type(message)
    codecs, payload = _fields(kind)
    values = {name: to_json(getattr(message, name)) for name, (to_json, _) in codecs.items()}
    return {"kind": kind.__name__, **values}, getattr(message, payload) if payload else b""


def decode(values: Mapping[str, Any], payload: bytes, table: Table) -> Message:
    """Makes a message of plain values.

    Args:
        values: Made by ``encode`` at the other end, which may be hostile.
        payload: The bytes beside them.
        table: What that end may send.

    Raises:
        ValueError: They are no message of the table.
    """
    try:
        given = dict(values)
        message = table[given.pop("kind")]
        codecs, own = _fields(message)
        beside = {own: payload} if own else {}
        return message(**{name: codecs[name][1](value) for name, value in given.items()}, **beside)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"this end may not send such a message: {error!r:.200}") from error


def _fields(message: type[Message]) -> tuple[dict[str, Codec], str | None]:
    """How each field of a kind of message is written and read, and the name of the one of bytes."""
    if (known := _KNOWN.get(message)) is None:
        types = {field.name: field.type for field in fields(message)}
        payload = next((name for name, kind in types.items() if kind is bytes), None)
        types.pop(payload or "", None)
        known = {name: _CODECS[kind] for name, kind in types.items()}, payload
        _KNOWN[message] = known
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
    World: (World.to_json, World.from_json),
    Outcome: (to_report, from_report),
    Peer: (Peer.to_json, Peer.from_json),
    Assignment: (Assignment.to_json, Assignment.from_json),
}
