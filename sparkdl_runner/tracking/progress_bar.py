"""A progress bar on the driver, in a terminal or a notebook: rate, time left, latest metrics."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sparkdl_runner.reports import Reports
from sparkdl_runner.world import World

MAX_METRICS = 4


class ProgressBar(Reports):
    """Shows how far rank 0 is; appears with the first step that ``log_metrics`` tells of.

    Where nobody watches (no terminal and no notebook), or tqdm is not installed, it shows nothing.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._is_wanted = _somebody_watches()

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if world.rank != 0 or report["step"] is None or not self._is_wanted:
            return
        if self._bar is None and not self._open(report):
            return
        bar = self._bar
        if report["total_steps"]:
            bar.total = report["total_steps"]
        latest = list(report["latest"].items())[:MAX_METRICS]
        told = {name: f"{value:.4g}" for name, value in latest}
        if report["epoch"] is not None:
            told = {"epoch": str(report["epoch"]), **told}
        bar.set_postfix(told, refresh=False)
        bar.n = max(report["step"], 0)
        bar.refresh()

    def close(self) -> None:
        """Leaves the bar as it is and goes on below it."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _open(self, report: dict[str, Any]) -> bool:
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            self._is_wanted = False
            return False
        self._bar = tqdm(
            total=report["total_steps"] or None,
            initial=report["step"],
            unit="step",
            desc="training",
            dynamic_ncols=True,
        )
        return True


def _somebody_watches() -> bool:
    if "ipykernel" in sys.modules or "dbruntime" in sys.modules:
        return True
    stream = sys.stderr
    return stream is not None and hasattr(stream, "isatty") and stream.isatty()
