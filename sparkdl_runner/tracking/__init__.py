"""One MLflow run for each training: opened and ended by the driver, with rank 0's metrics.

Importing this package imports neither mlflow nor torch; each name below is loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_runner.tracking.models.log_model import log_model as log_model
    from sparkdl_runner.tracking.rank.metrics import log_metrics as log_metrics
    from sparkdl_runner.tracking.settings import Tracking as Tracking

_HOMES = {
    "Tracking": "settings",
    "log_metrics": "rank.metrics",
    "log_model": "models.log_model",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
