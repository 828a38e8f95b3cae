"""State that every checkpoint holds without being named by the user, such as undelivered metrics.

Its owner registers how to get it and how to put it back. Checkpoints keep it as JSON.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

_lock = threading.Lock()
_owners: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
_unclaimed: dict[str, Any] = {}


def register(name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
    """Makes a state part of every checkpoint.

    Args:
        name: What it is called in checkpoints; another owner of that name is replaced.
        get: Returns the state, as plain values for ``json.dumps``.
        put: Takes what ``get`` returned, perhaps in another process. Called at once if a
            checkpoint with such a state was restored already.
    """
    with _lock:
        _owners[name] = (get, put)
        waits = name in _unclaimed
        state = _unclaimed.pop(name, None)
    if waits:
        put(state)


def unregister(name: str) -> None:
    """Leaves the state of that name out of checkpoints from now on; no error if there is none."""
    with _lock:
        _owners.pop(name, None)


def collect() -> dict[str, Any]:
    """The states of all owners, by name."""
    with _lock:
        owners = dict(_owners)
    # Outside of the lock: a getter may take locks of its own.
    return {name: get() for name, (get, _) in owners.items()}


def put_back(states: Mapping[str, Any]) -> None:
    """Gives each state to its owner; one that has none yet is kept until it registers."""
    for name, state in states.items():
        with _lock:
            owner = _owners.get(name)
            if owner is None:
                _unclaimed[name] = state
        if owner is not None:
            owner[1](state)
