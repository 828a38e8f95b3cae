"""Facts about a rank that the driver may show, such as its newest checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_facts: dict[str, Any] = {}
_send: Callable[[], None] | None = None


def note(**facts: Any) -> None:
    """Remembers plain JSON values by name; an earlier value of the same name is replaced."""
    with _lock:
        _facts.update(facts)


def tell(**facts: Any) -> None:
    """Notes facts that the driver must know even if this process dies in the next moment."""
    note(**facts)
    if _send is not None:
        _send()


def send_by(send: Callable[[], None] | None) -> None:
    """Takes the function that sends all facts to the driver now; any thread may call it."""
    global _send
    _send = send


def add(name: str, count: int) -> None:
    """Adds to a number that was noted by that name, from 0."""
    with _lock:
        _facts[name] = _facts.get(name, 0) + count


def current() -> dict[str, Any]:
    """All that was noted so far."""
    with _lock:
        return dict(_facts)
