"""Plots of a study, on the page of the search's run."""

from __future__ import annotations

import warnings
from typing import Any


def log_plots(study: Any) -> None:
    """Logs what was found trial by trial, and by the values of each parameter, to the active run.

    What goes wrong is printed: a search is worth more than its plots.
    """
    try:
        import mlflow
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as plots

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Experimental to Optuna; one value has no range.
            for name, plot in (
                ("trials", plots.plot_optimization_history),
                ("parameters", plots.plot_slice),
            ):
                plot(study)
                mlflow.log_figure(pyplot.gcf(), f"study/{name}.png")
                pyplot.close()
    except Exception as error:
        print(f"The study could not be plotted: {error!r:.300}", flush=True)
