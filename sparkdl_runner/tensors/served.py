"""A network as a model of MLflow's, which takes and returns DataFrames.

This package is copied into the model, so that it loads where sparkdl_runner is not installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .errors import BadColumnError
from .pandas_values import arrow_of
from .predictor import Predictor
from .saved import load

if TYPE_CHECKING:
    import pandas as pd

MAY_UNPICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
"""MLflow's own setting. If it is false, no network is opened: a graph can run code as well."""


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> ServedNetwork:
    """Called by MLflow to load a model, under MLflow's name."""
    del model_config
    trusted = os.environ.get(MAY_UNPICKLE, "true").lower() in ("true", "1")
    network = load(Path(path), trust=trusted, how_to_trust=f"set {MAY_UNPICKLE}=true")
    about = network.about
    predictor = Predictor(network.module, network.description, about["batch_size"])
    return ServedNetwork(predictor, about["names"])


class ServedNetwork:
    """Predicts for DataFrames.

    Args:
        predictor: The network.
        names: The names of the columns of predictions, by label and Spark's name for the column.
    """

    def __init__(self, predictor: Predictor, names: dict[str, dict[str, str]]) -> None:
        self._predictor = predictor
        self._names = names

    def predict(self, data: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The columns of predictions, one row for each of ``data``.

        Raises:
            BadColumnError: A column is missing, or its values are not what the network takes.
        """
        import pandas as pd

        columns = self._predictor.description.columns
        missing = [column.name for column in columns if column.name not in data.columns]
        if missing:
            raise BadColumnError(
                f"The DataFrame has no column {missing[0]!r}, which the model takes. It has: "
                f"{', '.join(map(str, data.columns))}."
            )
        arrays = [arrow_of(column, data[column.name]) for column in columns]
        predictions = self._predictor.predict(arrays, len(data))
        return pd.DataFrame(
            {
                self._names[label][name]: _series(numbers)
                for label, made in predictions.items()
                for name, numbers in made.items()
                if name in self._names[label]
            },
            index=data.index,
        )


def _series(numbers: Array) -> Any:
    if numbers.ndim == 1:
        return numbers
    if numbers.dtype == np.bool_:
        # As Spark's evaluators take several labels: their numbers.
        return [np.flatnonzero(row).astype(np.float64).tolist() for row in numbers]
    return numbers.tolist()
