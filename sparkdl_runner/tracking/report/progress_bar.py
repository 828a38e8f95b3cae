"""A progress bar on the driver, in a terminal or a notebook: rate, time left, latest metrics."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
import warnings
from typing import Any

from sparkdl_runner.base.notebook import in_notebook
from sparkdl_runner.base.shown_text import line
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

MAX_METRICS = 4


class ProgressBar(Reports):
    """Shows how far rank 0 is, from its first step on. It is for where ``is_watched`` is true.

    Of trainings side by side one has the screen until it ends; then another that goes on has it.
    Bars below one another need a terminal's cursor, and a notebook's text has none.
    """

    _screen = threading.Lock()

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown: tuple[Any, ...] = ()
        self._seconds = 0.0

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if world.rank != 0 or report["step"] is None:
            return
        if self._bar is None:
            if not self._screen.acquire(blocking=False):
                return
            try:
                self._bar = _open_bar(report)
            except BaseException:
                self._screen.release()
                raise
        bar = self._bar
        if report["total_steps"]:
            bar.total = report["total_steps"]
        latest = list(report["latest"].items())[:MAX_METRICS]
        figures = {line(name): f"{value:.4g}" for name, value in latest}
        if report["epoch"] is not None:
            figures = {"epoch": str(report["epoch"]), **figures}
        shown = (world.attempt, report["step"], bar.total, figures)
        if shown == self._shown:
            return
        self._shown, self._seconds = shown, report["running_seconds"]
        bar.initial = report["step"] - report["steps"]
        bar.n = max(report["step"], 0)
        self._set_clock()
        bar.set_postfix(figures, refresh=False)
        bar.refresh()

    def close(self) -> None:
        """Leaves the bar as it is and goes on below it."""
        if self._bar is not None:
            self._set_clock()
            self._bar.close()
            self._bar = None
            self._screen.release()

    def _set_clock(self) -> None:
        """Makes the bar count the time from rank 0's first step to its last.

        Its own clock would begin with the first report, and go on while a model is saved.
        """
        self._bar.last_print_t = time.time()
        self._bar.start_t = self._bar.last_print_t - self._seconds


def _open_bar(report: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        # In a notebook without widgets, tqdm shows text, and advises to install widgets.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm(
        total=report["total_steps"] or None,
        initial=report["step"],
        unit=" step",
        desc="training",
        dynamic_ncols=True,
        # In a notebook each change between the two streams begins a new block. Ranks print on
        # stdout: below that, a bar on stderr would be shown again and again.
        file=sys.stdout if in_notebook() else sys.stderr,
    )


def is_watched() -> bool:
    """Whether a bar can be shown: in a notebook or at a terminal, with tqdm installed."""
    stream = sys.stderr
    is_terminal = stream is not None and hasattr(stream, "isatty") and bool(stream.isatty())
    return (in_notebook() or is_terminal) and importlib.util.find_spec("tqdm") is not None
