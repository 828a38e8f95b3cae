"""The rank of this process and its like. A process that is no rank gets 0, of 1."""

from __future__ import annotations

import os
from typing import Any

from sparkdl_runner.launch.wire.network import source_address

__all__ = [
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_ip",
    "get_node_rank",
    "get_replica_rank",
    "get_world_size",
]


def get_global_rank(group: Any = None) -> int:
    """The rank of this process, from 0.

    Args:
        group: A process group of torch's, to get the rank within it.
    """
    if group is not None:
        import torch.distributed

        return int(torch.distributed.get_rank(group))
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    """How many ranks there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def get_local_rank() -> int:
    """The rank among those of this machine, from 0, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_local_world_size() -> int:
    """How many ranks this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def get_node_rank() -> int:
    """The number of this machine among those of the run, from 0."""
    return int(os.environ.get("NODE_RANK", "0"))


def get_replica_rank() -> int:
    """Which of several copies of a run this is: 0, since there is one."""
    return int(os.environ.get("REPLICA_RANK", "0"))


def get_node_ip() -> str:
    """The address of this machine towards others; 127.0.0.1 where it has no network."""
    return source_address("192.0.2.1")
