"""Whether this rank has joined the others, by whichever library; nothing is imported for it."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from sparkdl_runner.base.importing import when_imported

# All process groups of torch, and all frameworks of Horovod, begin here.
TORCHS_GROUPS = ("torch.distributed.distributed_c10d", "_new_process_group_helper")
HOROVODS_INIT = ("horovod.common.basics", "HorovodBasics.init")
TENSORFLOWS_STRATEGY = (
    "tensorflow.python.distribute.collective_all_reduce_strategy",
    "CollectiveAllReduceStrategy.__init__",
)

_has_joined = False


def has_joined() -> bool:
    """Whether the function has called what joins it with its peers."""
    return _has_joined


def note_when_joined(joins: tuple[str, str]) -> None:
    """Looks out for that from now on. Call it before Horovod is imported, which binds its names.

    Args:
        joins: See ``Backend.joins``. The rank may also join by a library that is none of its
            backend's, to which user code names the peers.
    """
    for module, path in {joins, TORCHS_GROUPS, HOROVODS_INIT, TENSORFLOWS_STRATEGY}:
        when_imported(module, functools.partial(_note_calls, path))


def _note_calls(path: str, module: ModuleType) -> None:
    owner: Any = module
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @functools.wraps(function)
    def call_and_note(*args: object, **kwargs: object) -> object:
        global _has_joined
        _has_joined = True
        return function(*args, **kwargs)

    setattr(owner, name, call_and_note)
