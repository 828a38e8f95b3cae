"""Facts about a rank that the driver may show, such as its newest checkpoint."""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
_facts: dict[str, Any] = {}


def note(**facts: Any) -> None:
    """Remembers plain JSON values by name; an earlier value of the same name is replaced."""
    with _lock:
        _facts.update(facts)


def add(name: str, count: int) -> None:
    """Adds to a number that was noted by that name, from 0."""
    with _lock:
        _facts[name] = _facts.get(name, 0) + count


def current() -> dict[str, Any]:
    """All that was noted so far."""
    with _lock:
        return dict(_facts)
