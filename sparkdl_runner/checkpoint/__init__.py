"""Checkpoints: a training resumes after the loss of a process or a damaged file.

:class:`CheckpointManager` saves without stopping the step loop for longer than a copy takes, and
restores the newest checkpoint of which every byte is as it was written. :class:`Checkpoint` reads
one in any process. Importing this package imports no torch; each name is loaded when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_runner.checkpoint.errors import CheckpointError as CheckpointError
    from sparkdl_runner.checkpoint.errors import CheckpointMismatchError as CheckpointMismatchError
    from sparkdl_runner.checkpoint.errors import CheckpointStorageError as CheckpointStorageError
    from sparkdl_runner.checkpoint.errors import Growing as Growing
    from sparkdl_runner.checkpoint.errors import Preempted as Preempted
    from sparkdl_runner.checkpoint.loading import Checkpoint as Checkpoint
    from sparkdl_runner.checkpoint.manager import CheckpointManager as CheckpointManager
    from sparkdl_runner.checkpoint.restoring import Restored as Restored
    from sparkdl_runner.checkpoint.stopping import Stop as Stop
    from sparkdl_runner.checkpoint.stopping import should_stop as should_stop

_HOMES = {
    "Checkpoint": "loading",
    "CheckpointError": "errors",
    "CheckpointManager": "manager",
    "CheckpointMismatchError": "errors",
    "CheckpointStorageError": "errors",
    "Growing": "errors",
    "Preempted": "errors",
    "Restored": "restoring",
    "Stop": "stopping",
    "should_stop": "stopping",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
