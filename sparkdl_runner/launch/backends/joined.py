"""Whether this rank has joined the others, by whichever library; nothing is imported for it."""

from __future__ import annotations

import functools
from types import ModuleType

from sparkdl_runner.base.importing import when_imported

# All process groups of torch, and all frameworks of Horovod, begin here.
_GROUPS = "torch.distributed.distributed_c10d"
_BASICS = "horovod.common.basics"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"

_has_joined = False


def has_joined() -> bool:
    """Whether the function has made a process group or a strategy, or has called ``hvd.init``."""
    return _has_joined


def note_when_joined() -> None:
    """Looks out for that from now on. Call it before Horovod is imported, which binds its names."""
    when_imported(_GROUPS, lambda module: _note_calls(module, "_new_process_group_helper"))
    when_imported(_BASICS, lambda module: _note_calls(module.HorovodBasics, "init"))
    when_imported(_STRATEGY, lambda one: _note_calls(one.CollectiveAllReduceStrategy, "__init__"))


def _note_calls(owner: ModuleType | type, name: str) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def call_and_note(*args: object, **kwargs: object) -> object:
        global _has_joined
        _has_joined = True
        return function(*args, **kwargs)

    setattr(owner, name, call_and_note)
