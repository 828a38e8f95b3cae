"""Ends a trial early where the study's pruner finds its metric bad beside that of other trials."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry


class Pruning(Reports):
    """Reports a trial's metric to Optuna as it is logged, and ends all ranks where Optuna says so.

    The training needs to do nothing but log the metric with a step. Since all of its ranks are
    ended by the driver, none of them waits for another.

    Args:
        trial: Optuna's.
        metric: By which trials are compared.
    """

    def __init__(self, trial: Any, metric: str) -> None:
        self._trial = trial
        self._metric = metric
        self._lock = threading.Lock()
        self._cancel: Callable[[World, str], None] | None = None
        self._world: World | None = None
        self._reason: str | None = None
        self._last_step = -1
        self.pruned_at: int | None = None
        """The step of the value that was too bad."""
        self.error: Exception | None = None
        """Why Optuna could not be asked."""

    def begin(self, cancel: Callable[[World, str], None]) -> None:
        """See ``Reports.begin``."""
        with self._lock:
            self._cancel = cancel

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        with self._lock:
            self._world = world
        if self._reason is not None:
            self.end(self._reason)

    def logged(self, world: World, entries: list[Entry]) -> None:
        """See ``Reports.logged``."""
        for kind, name, *rest in entries:
            if kind == "metric" and name == self._metric and self._is_bad(rest[0], rest[2]):
                self.end(f"The trial was pruned at step {rest[2]}: {name} is {rest[0]:.6g}.")
                return

    def end(self, reason: str) -> None:
        """Ends the trial's ranks: now, or as soon as the first of them reports."""
        with self._lock:
            self._reason = reason
            if self._cancel is not None and self._world is not None:
                self._cancel(self._world, reason)

    def _is_bad(self, value: float, step: int) -> bool:
        if step <= self._last_step:  # An attempt after a failure logs some steps once more.
            return False
        self._last_step = step
        try:
            self._trial.report(value, step)
            if not self._trial.should_prune():
                return False
        except Exception as error:
            self.error = error
            return True
        self.pruned_at = step
        return True
