"""Process groups of torch that user code destroys while a model still uses them."""

from __future__ import annotations

import functools
import sys
from typing import Any

# The list's, the loop's and the call's.
_REFERENCES_OF_KEPT = 3


def keep_destroyed_groups() -> None:
    """Keeps each group that ``destroy_process_group()`` ends until no Python object has it.

    A group's destructor waits for its threads, and with torch 2.13 these need the interpreter's
    lock to let a backward pass's context go. Python gives that lock up when it drops a group; a
    ``DistributedDataParallel`` that outlives its group drops it with the lock held, for ever.
    """
    import torch.distributed
    from torch.distributed import distributed_c10d

    destroy = distributed_c10d.destroy_process_group
    kept: list[object] = []

    @functools.wraps(destroy)
    def destroy_and_keep(group: Any = None) -> None:
        # A group that nothing else refers to can go now: no model can drop it any more.
        kept[:] = [
            kept_group for kept_group in kept if sys.getrefcount(kept_group) > _REFERENCES_OF_KEPT
        ]
        groups = list(distributed_c10d._world.pg_map)
        destroy(group)
        kept.extend(listed for listed in groups if listed not in distributed_c10d._world.pg_map)

    distributed_c10d.destroy_process_group = destroy_and_keep
    torch.distributed.destroy_process_group = destroy_and_keep
