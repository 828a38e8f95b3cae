"""The variables that all backends set, and a backend's beside those that a person has set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkdl_runner.launch.backends import Rendezvous
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from sparkdl_runner.launch.config import RunConfig

# The driver names the rank that is late. A library that gave up first would blame the ranks that
# waited for it; so it waits longer, and gives up only where the driver is gone.
BEHIND_THE_DRIVER_SECONDS = 60
# Libraries count milliseconds in 32 bits here and there.
MOST_SECONDS = 2_000_000

# A person's own value of these is kept.
_DEFAULTS = ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
# A person's own value of these is kept if it is larger. With a smaller one the library would give
# up before the driver does, and blame the rank that waited.
_AT_LEAST = ("HOROVOD_GLOO_TIMEOUT_SECONDS",)


def join_seconds(config: RunConfig) -> int:
    """How long a library may wait for ranks that are late."""
    seconds = math.ceil(config.rendezvous_timeout_seconds) + BEHIND_THE_DRIVER_SECONDS
    return min(seconds, MOST_SECONDS)


def common_environment(world: World, rendezvous: Rendezvous) -> dict[str, str]:
    """The variables that all backends set: torchrun's contract, by which libraries find their rank.

    See ``torch/distributed/run.py`` and ``LocalElasticAgent._start_workers``. All ranks have one
    role, which has torchrun's default name.
    """
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.host_rank),
        # TorchDistributor's name of it, which code made for that reads.
        "NODE_RANK": str(world.host_rank),
        "GROUP_WORLD_SIZE": str(world.num_hosts),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(world.rank),
        "ROLE_WORLD_SIZE": str(world.size),
        "TORCHELASTIC_RUN_ID": rendezvous.attempt.run,
        "TORCHELASTIC_RESTART_COUNT": str(world.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(rendezvous.attempt.config.max_restarts),
        "NCCL_SOCKET_IFNAME": f"={world.interface}",
    }


def beside_own(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """What to set of a backend's variables in a process that has some of its own.

    Args:
        environment: What the backend needs.
        own: The variables that the process has, its user's among them.
    """
    settled = dict(environment)
    for name in settled.keys() & own.keys():
        if name in _DEFAULTS or (name in _AT_LEAST and _number(own[name]) > float(settled[name])):
            settled[name] = own[name]
    return settled


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
