"""Sends the figures to the driver that the function shows with matplotlib, once it is imported."""

from __future__ import annotations

import io
import os
import sys
from types import ModuleType
from typing import Any

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import MAX_FIGURE_BYTES, MAX_FIGURES, Figure

BACKEND = "module://sparkdl_runner.launch.worker.figure_backend"
# A kernel sets this for the cells that it runs, and a process that it starts has no cell.
_OF_A_KERNEL = ("inline", "module://matplotlib_inline.backend_inline")

_line: WorkerPipe | None = None
_worker_pid: int | None = None
_count = 0


def show_on_driver(line: WorkerPipe, rank: int) -> None:
    """Has ``plt.show()`` send rank 0's figures down ``line``, unless a backend was chosen."""
    global _line, _worker_pid
    if rank == 0:
        _line, _worker_pid = line, os.getpid()
    if os.environ.get("MPLBACKEND") in _OF_A_KERNEL:
        del os.environ["MPLBACKEND"]
    when_imported("matplotlib", _choose_backend)


def _choose_backend(matplotlib: ModuleType) -> None:
    # Looked up past matplotlib's own access, which would choose one; a text was chosen by a person.
    if not isinstance(dict.__getitem__(matplotlib.rcParams, "backend"), str):
        matplotlib.rcParams["backend"] = BACKEND


def send(figure: Any) -> None:
    """Sends a ``matplotlib.figure.Figure``; of ranks other than 0, and child processes, none is."""
    global _count
    if _line is None or os.getpid() != _worker_pid or _count > MAX_FIGURES:
        return
    _count += 1
    if _count > MAX_FIGURES:
        tell(f"this run has shown {MAX_FIGURES} figures; later ones are left out.", sys.stdout)
        return
    png = _png(figure)
    if png is None:
        tell(
            f"a figure is left out, as its picture is larger than {MAX_FIGURE_BYTES:,} bytes at "
            "any resolution: make it smaller, or save it with savefig().",
            sys.stdout,
        )
        return
    _line.send(Figure(_count, png))


def _png(figure: Any) -> bytes | None:
    """The figure's picture, at the first resolution at which it is small enough."""
    for share in (1, 2, 4, 8):
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=figure.dpi / share, bbox_inches="tight")
        if file.tell() <= MAX_FIGURE_BYTES:
            return file.getvalue()
    return None
