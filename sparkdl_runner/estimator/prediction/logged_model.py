"""The model of a fit in the fit's MLflow run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.tracking.settings import Tracking

if TYPE_CHECKING:
    from sparkdl_runner.estimator.model import TorchModel
    from sparkdl_runner.launch.config import RunConfig


def log_fitted(model: TorchModel, config: RunConfig) -> None:
    """Logs a fitted model to its run. A problem is printed, and does not undo the fit."""
    import mlflow

    from sparkdl_runner.estimator.prediction.mlflow_model import log_torch_model

    tracking = config.tracking if isinstance(config.tracking, Tracking) else Tracking()
    reason = ""
    if tracking.tracking_uri not in (None, mlflow.get_tracking_uri()):
        # MLflow logs models to the store of the whole process, which other threads use as well.
        reason = f"its run is in another store than MLflow's own, {mlflow.get_tracking_uri()}"
    else:
        try:
            log_torch_model(model)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    if reason:
        shown = Redactor()(reason)
        tell(f"the fitted model is not in the MLflow run {model.run_id} ({shown}).")
