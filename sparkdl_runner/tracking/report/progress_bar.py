"""A progress bar on the driver, in a terminal or a notebook: rate, time left, latest metrics."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import warnings
from typing import Any

from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.world import World

MAX_METRICS = 4


class ProgressBar(Reports):
    """Shows how far rank 0 is; appears with the first step that ``log_metrics`` tells of.

    Where nobody watches (no terminal and no notebook), or tqdm is not installed, it shows nothing.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown: tuple[Any, ...] = ()
        self._seconds = 0.0
        self._in_notebook = _in_notebook()
        self._is_wanted = is_watched()

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
        shown = (world.attempt, report["step"], bar.total, told)
        if shown == self._shown:
            return
        self._shown, self._seconds = shown, report["running_seconds"]
        bar.initial = report["step"] - report["steps"]
        bar.n = max(report["step"], 0)
        self._set_clock()
        bar.set_postfix(told, refresh=False)
        bar.refresh()

    def close(self) -> None:
        """Leaves the bar as it is and goes on below it."""
        if self._bar is not None:
            self._set_clock()
            self._bar.close()
            self._bar = None

    def _open(self, report: dict[str, Any]) -> bool:
        try:
            with warnings.catch_warnings():
                # A notebook without widgets gets a bar of text, and needs no advice on widgets.
                warnings.simplefilter("ignore")
                tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            self._is_wanted = False
            return False
        self._bar = tqdm(
            total=report["total_steps"] or None,
            initial=report["step"],
            unit=" step",
            desc="training",
            dynamic_ncols=True,
            # In a notebook each change between the two streams begins a new block, and what ranks
            # print is on stdout: there the bar could not stay below it.
            file=sys.stdout if self._in_notebook else sys.stderr,
        )
        return True

    def _set_clock(self) -> None:
        """Makes the bar count the time from rank 0's first step to its last.

        Its own clock would begin with the first report, and go on while a model is saved.
        """
        self._bar.last_print_t = time.time()
        self._bar.start_t = self._bar.last_print_t - self._seconds


def is_watched() -> bool:
    """Whether there is somebody to see a bar: in a notebook, or at a terminal."""
    stream = sys.stderr
    is_terminal = stream is not None and hasattr(stream, "isatty") and bool(stream.isatty())
    return (_in_notebook() or is_terminal) and importlib.util.find_spec("tqdm") is not None


def _in_notebook() -> bool:
    if "dbruntime" in sys.modules:
        return True
    # Spark 4 imports ipykernel by itself; only in a kernel is there a shell that has one.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
