"""How much memory one rank has."""

from __future__ import annotations

from typing import NamedTuple

import psutil
import torch

from sparkdl_runner.rank import world
from sparkdl_runner.rank.control_group import limit_bytes


class DeviceMemory(NamedTuple):
    """Memory of one rank, and where it is."""

    size_bytes: int
    place: str


def device_memory(num_proc: int) -> DeviceMemory:
    """A GPU of this host; without any, the rank's share of the host's or container's memory.

    Ranks share a host as the run's do, or as those of a negative ``num_proc``; of other ranks each
    has a host to itself.
    """
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        return DeviceMemory(device.total_memory, device.name)
    host, limit = psutil.virtual_memory().total, limit_bytes()
    place = "this host"
    if limit is not None and limit < host:
        host, place = limit, "this container"
    ranks = world.current_world().local_size if world.in_worker() else max(1, -num_proc)
    if ranks > 1:
        place = f"1/{ranks} of {place}"
    return DeviceMemory(host // ranks, place)
