"""The template of a Spark task's workers, and of the next task in the same Python process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.launch.agent.spares.pool import keep_template
from sparkdl_runner.launch.agent.worker_environment import worker_environment


@dataclass(frozen=True, kw_only=True)
class SpareTask:
    """Starts a template of workers in each task's process. Spark calls it."""

    backend: str
    """The backend's name."""
    variables: Mapping[str, str] = field(repr=False)
    """The variables of the driver that ranks get."""
    seconds: float
    """How long a template waits for the next call; 0 if it is not to."""
    ranks: int = 1
    """How many ranks a task has."""
    spark_set_threads: bool = False
    """Whether Spark set OMP_NUM_THREADS in the task's environment, for a task of another size."""

    def __call__(self, _rows: Iterable[Any]) -> Iterator[Any]:
        """Does it in the task that runs this, and ends at once."""
        from pyspark import TaskContext

        self.keep(TaskContext.get(), self.seconds)
        return iter(())

    def keep(self, context: Any, seconds: float) -> None:
        """Keeps a template in this process.

        Args:
            context: The task's.
            seconds: How long it waits; 0 for none.
        """
        if self.can_keep():
            environment = self.environment(context)
            keep_template(seconds, backend=self.backend, environment=environment)

    def can_keep(self) -> bool:
        """Whether this process stays when its task has ended."""
        return bool(os.environ.get("SPARK_REUSE_WORKER"))

    def environment(self, context: Any) -> dict[str, str]:
        """The environment that a worker of a task starts with.

        Args:
            context: The task's.
        """
        return worker_environment(
            threads=max(1, context.cpus() // self.ranks),
            variables=self.variables,
            overrule=self.spark_set_threads,
        )
