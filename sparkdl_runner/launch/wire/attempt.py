"""One submission of all ranks: the value that launchers take and Spark carries to agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.rank_run import RunTicket


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """The facts of one attempt that are equal for all ranks, wherever they run."""

    backend: str
    """The backend's name."""
    function: bytes = field(repr=False)
    """The user's function and its arguments, made by ``driver.calls.call.pack``."""
    config: RunConfig
    run: str
    """The run's own name, which no other run has."""
    number: int = 0
    """Counted from 0 over all drivers that have worked on the run."""
    is_restart: bool = False
    """Whether this driver has made an earlier attempt."""
    may_restart: bool = False
    """Whether another attempt may follow a failure of this one."""
    search_path: tuple[str, ...] = ()
    """The driver's search path for modules."""
    driver_files: str = ""
    """Tells whether a rank sees the driver's own files: ``worker.driver_folders.own_files``."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The driver's environment variables that ranks get."""
    spare_seconds: float = 0.0
    """How long a template of workers waits for the next call; 0 for none."""
    ticket: RunTicket | None = None
    """The MLflow run that the training goes into, if there is one."""

    @property
    def waits_for_restart(self) -> bool:
        """Whether a template stays beside the ranks for a restart."""
        return self.may_restart and self.config.spare_seconds != 0

    def uses_template(self, ranks: int, *, can_keep: bool = True) -> bool:
        """Whether the workers of a process are forked from a template.

        Args:
            ranks: How many it has.
            can_keep: Whether the process stays after them.
        """
        return ranks > 1 or (can_keep and (self.waits_for_restart or self.spare_seconds > 0))

    def node_view(self, world: World, ranks_per_task: int = 1) -> World:
        """A rank's place as its environment is to tell it; see ``RunConfig.node_view``."""
        return world.in_task(ranks_per_task) if self.config.node_view == "task" else world
