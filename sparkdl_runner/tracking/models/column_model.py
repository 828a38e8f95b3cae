"""A logged network as a model of Spark's columns, as MLflow loads it from the model's folder.

This file is copied into the model, so that it loads where this package is not installed: it
imports nothing of the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mlflow import pytorch

if TYPE_CHECKING:
    import pandas as pd

COLUMNS_FILE = "columns.json"


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> ColumnModel:
    """What MLflow calls to load a model; the name is MLflow's."""
    about = json.loads(Path(path, COLUMNS_FILE).read_text())
    return ColumnModel(pytorch._load_pyfunc(path, model_config), **about)


class ColumnModel:
    """Makes one tensor of columns, and gives it to a network.

    Args:
        network: MLflow's wrapper of the network, which takes and gives arrays.
        columns: Their names: one of arrays, or one for each number of a row.
        row_shape: The shape of one row; at most one size is -1, which may vary.
        dtype: Of the tensor.
    """

    def __init__(self, network: Any, columns: list[str], row_shape: list[int], dtype: str) -> None:
        self._network = network
        self._columns = columns
        self._row_shape = row_shape
        self._dtype = np.dtype(dtype)

    def predict(self, data: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """Predictions, one for each row of the DataFrame."""
        if len(self._columns) > 1 or not self._row_shape:
            numbers = data[self._columns].to_numpy(dtype=self._dtype)
            shape = (len(data), *self._row_shape)
            return self._network.predict(np.ascontiguousarray(numbers.reshape(shape)))
        rows = [np.asarray(row, dtype=self._dtype).reshape(-1) for row in data[self._columns[0]]]
        lengths = np.array([row.size for row in rows])
        # Rows of one length make a tensor. There is one tensor for each length.
        scored: list[Any] = [None] * len(rows)
        for length in np.unique(lengths):
            places = np.flatnonzero(lengths == length)
            found = self._predict(np.stack([rows[place] for place in places]))
            if len(places) == len(rows):
                return found
            for place, one in zip(places, found, strict=True):
                scored[place] = one
        if len({one.shape for one in scored}) > 1:
            raise ValueError(
                "Rows of different lengths have predictions of different shapes, which make no "
                "column: predict for rows of one length at a time, or pad them."
            )
        return np.stack(scored)

    def _predict(self, flat: Any) -> Any:
        try:
            rows = flat.reshape(len(flat), *self._row_shape)
        except ValueError:
            raise ValueError(
                f"A row of the column {self._columns[0]!r} has {flat.shape[1]} numbers, and the "
                f"model takes rows of shape {self._row_shape}."
            ) from None
        return self._network.predict(rows)
