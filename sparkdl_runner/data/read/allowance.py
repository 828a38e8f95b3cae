"""How much memory a rank may use for its data, by the limits of its process."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from sparkdl_runner import world
from sparkdl_runner.hooks import control_group

_SHARE = 4
"""The data may take a fourth of a rank's memory. The model, its gradients and torch need more."""


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """The limits on the memory of a rank's process."""

    host_bytes: int
    container_bytes: int | None = None
    """The limit of the control group; None for none."""
    process_bytes: int | None = None
    """The limit of the process alone, which ``spark.executor.pyspark.memory`` sets."""
    ranks: int = 1
    """Ranks that share the host."""

    @classmethod
    def here(cls) -> MemoryFacts:
        """Those of this process."""
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return cls(
            host_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            container_bytes=control_group.limit_bytes(),
            process_bytes=None if limit == resource.RLIM_INFINITY else limit,
            ranks=world.current_world().local_size if world.in_worker() else 1,
        )

    @property
    def rank_bytes(self) -> int:
        """All that a rank may have."""
        shared = min(self.host_bytes, self.container_bytes or self.host_bytes) // self.ranks
        return min(shared, self.process_bytes or shared)

    @property
    def data_bytes(self) -> int:
        """How many bytes the rank's data may take."""
        return self.rank_bytes // _SHARE
