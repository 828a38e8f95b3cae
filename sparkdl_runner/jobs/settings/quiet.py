"""Hides what libraries say of themselves, so that what a job says is seen."""

from __future__ import annotations

import logging
import os
import warnings


def quieten_libraries() -> None:
    """Does so in this process, and in those that it starts; what someone has set stays."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="petastorm")
    logging.getLogger("petastorm").setLevel(logging.ERROR)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
