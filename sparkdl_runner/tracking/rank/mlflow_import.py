"""Sets MLflow up in a rank when it is imported, and not before.

Importing it takes seconds, and many functions never do.
"""

from __future__ import annotations

from types import ModuleType

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.tracking.rank import other_ranks, rank_zero
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank_run import RankRun


def prepare(run: RankRun, recorder: Recorder) -> None:
    """Sets MLflow up once it is imported: rank 0's calls go to ``recorder``."""

    def set_up(_: ModuleType) -> None:
        if run.rank == 0:
            rank_zero.set_up(run, recorder)
        else:
            other_ranks.set_up(run)

    when_imported("mlflow", set_up)
