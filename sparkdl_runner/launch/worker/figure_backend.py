"""Matplotlib's backend in a rank: draws as Agg does, and shows a figure by sending its picture.

Matplotlib imports this module itself, by its name in ``figures.BACKEND``.
"""

from __future__ import annotations

from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sparkdl_runner.launch.worker import figures


class FigureManager(FigureManagerBase):
    """Shows one figure: ``figure.show()``."""

    def show(self) -> None:
        """Sends it."""
        figures.send(self.canvas.figure)


class FigureCanvas(FigureCanvasAgg):
    """Agg's canvas, with the manager that sends figures."""

    manager_class = FigureManager


def show(*_args: Any, **_kwargs: Any) -> None:
    """``plt.show()``: sends all open figures and closes them, as if their windows were closed."""
    for manager in Gcf.get_all_fig_managers():
        manager.show()
    Gcf.destroy_all()
