"""Whether there is memory for what a manifest lists, asked before it is read.

A file of twenty gigabytes may take no room on its disk. And a host that is too small says nothing
against a checkpoint: it is as good as it was, and so no damage.
"""

from __future__ import annotations

import psutil

from sparkdl_runner.checkpoint.errors import UnreadableError
from sparkdl_runner.rank import control_group

# How much of a host's memory, or of its group's, copies of checkpoints leave free.
FREE_SHARE = 0.1
# Less than that is there, or is given by the kernel in time.
_SMALL_BYTES = 64 << 20


def require_memory(size_bytes: int, what: str) -> None:
    """Refuses what would not fit into this host's memory.

    Args:
        size_bytes: How much is to be read.
        what: What that is, for the message.

    Raises:
        UnreadableError: It does not fit.
    """
    if size_bytes <= _SMALL_BYTES:
        return
    free = available_bytes()
    if free is not None and size_bytes > free:
        raise UnreadableError(
            f"{what} has {size_bytes:,} bytes, and {free:,} bytes of memory are free on this host"
        )


def leaves_room(size_bytes: int) -> bool:
    """Whether ``FREE_SHARE`` of the memory that this process can have stays free beside that.

    False if the system does not tell how much memory is free.
    """
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error):
        return False
    free, total = int(memory.available), int(memory.total)
    if (limit := control_group.limit_bytes()) is not None:
        free, total = min(free, control_group.free_bytes() or 0), min(total, limit)
    return free - size_bytes >= FREE_SHARE * total


def available_bytes() -> int | None:
    """The memory that this process can have: the host's free one, or its group's limit if less."""
    limits = [_host_bytes(), control_group.limit_bytes()]
    return min((limit for limit in limits if limit is not None), default=None)


def _host_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().available)
    except (OSError, psutil.Error):
        return None
