"""Spark ML on top of the runner: ``TorchEstimator`` is fitted to a DataFrame by ranks, and the
``TorchModel`` that it returns adds predictions to another.

Imports pyspark, and so is for the driver. Imported by users alone.
"""

from sparkdl_runner.estimator.estimator import TorchEstimator
from sparkdl_runner.estimator.model import TorchModel
from sparkdl_runner.estimator.prediction.mlflow_model import log_torch_model
from sparkdl_runner.training.loop.early_stopping import EarlyStopping

__all__ = ["EarlyStopping", "TorchEstimator", "TorchModel", "log_torch_model"]
