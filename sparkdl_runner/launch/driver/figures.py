"""The figures that rank 0 shows: pictures in a notebook's cell, and artifacts of the MLflow run."""

from __future__ import annotations

import base64
import sys

from sparkdl_runner.base.notebook import in_notebook, show_in_cell
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.wire.messages import MAX_FIGURE_BYTES, MAX_FIGURES, Figure
from sparkdl_runner.rank.world import World

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class ShownFigures:
    """Shows those of one attempt.

    Args:
        are_kept: Whether there is a run that keeps them.
    """

    def __init__(self, *, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._has_told = False

    def show(self, world: World, figure: Figure) -> str | None:
        """Shows a figure, or says where it is.

        Returns:
            The name of its file for ``Reports.file_part``; None if it is not to be kept.
        """
        is_picture = figure.png.startswith(_SIGNATURE) and len(figure.png) <= MAX_FIGURE_BYTES
        if not is_picture or not 0 < figure.count <= MAX_FIGURES:
            return None  # It is no figure that ``worker.figures`` has sent.
        what = f"figure {figure.count} of rank {world.rank}"
        name = f"rank-{world.rank}-{figure.count}.png"
        if in_notebook():
            picture = base64.b64encode(figure.png).decode()
            show_in_cell({"image/png": picture, "text/plain": what})
        elif self._are_kept:
            place = f"figures/attempt-{world.attempt}/{name}"
            tell(f"{what} goes to the MLflow run's artifacts: {place}.", sys.stdout)
        elif not self._has_told:
            self._has_told = True
            tell(
                f"{what} is shown nowhere: there is neither a notebook nor an MLflow run that "
                "keeps it. Save it with savefig(), or set MLFLOW_TRACKING_URI.",
                sys.stdout,
            )
        return f"figures/{name}"
