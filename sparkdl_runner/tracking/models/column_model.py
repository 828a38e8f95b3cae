"""A logged network as a model of columns or of named arrays, as MLflow loads it from its folder.

This file is copied into the model, so that it loads where this package is not installed: it
imports nothing of the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow import pytorch

ARGUMENTS_FILE = "arguments.json"
_MAY_UNPICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> ColumnModel:
    """Called by MLflow to load a model, under MLflow's name."""
    if os.environ.get(_MAY_UNPICKLE, "true").lower() not in ("true", "1"):
        raise ValueError(
            "The model can run any code when it is opened, as a graph or as a pickle. If you know "
            f"who logged it, set {_MAY_UNPICKLE}=true."
        )
    about = json.loads(Path(path, ARGUMENTS_FILE).read_text())
    loaded = pytorch._load_pyfunc(path, model_config)
    return ColumnModel(loaded.pytorch_model, loaded.device, **about)


def named_outputs(outputs: Any) -> dict[str, Any]:
    """A network's outputs by name: ``""`` for one tensor, ``output_0`` and so on for several.

    Raises:
        TypeError: It holds something else than tensors.
    """
    import torch

    named: Mapping[str, Any] = {"": outputs}
    if isinstance(outputs, Mapping):
        named = {str(name): output for name, output in outputs.items()}
    elif isinstance(outputs, (tuple, list)):
        named = {f"output_{place}": output for place, output in enumerate(outputs)}
    wrong = [
        type(output).__name__ for output in named.values() if not isinstance(output, torch.Tensor)
    ]
    if wrong or not named:
        raise TypeError(
            f"log_model: the network returns a {type(outputs).__name__}"
            + (f" that holds a {wrong[0]}" if wrong and "" not in named else "")
            + "; expected a tensor, or a tuple or dict of tensors. Log a module around it that "
            "returns that."
        )
    return dict(named)


class ColumnModel:
    """Makes the tensors that a network takes, and gives them to it.

    Args:
        network: The network.
        device: Where it is.
        arguments: Of each argument its name, its NumPy type, the shape of a row, in which one size
            at most is -1 and may vary, and its columns: one of arrays, or one for each number of a
            row. Without columns it is an array of that name.
        by_name: Whether the network takes its arguments by name.
    """

    def __init__(
        self, network: Any, device: Any, arguments: Sequence[Mapping[str, Any]], by_name: bool
    ) -> None:
        self._network = network
        self._device = device
        self._arguments = arguments
        self._by_name = by_name

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Predictions: an array, or several by the names of the outputs.

        Args:
            data: A DataFrame of the columns; or an array, or arrays by argument.
            params: Not used; MLflow gives them.
        """
        if self._arguments[0]["columns"] is None:
            is_named = isinstance(data, (Mapping, pd.DataFrame))
            arrays = [
                np.asarray(data[argument["name"]] if is_named else data, dtype=argument["dtype"])
                for argument in self._arguments
            ]
            return _as_one(self._called(arrays))
        rows = [_rows_of(data, argument) for argument in self._arguments]
        if not any(isinstance(column, list) for column in rows):
            return _as_one(self._called(self._shaped(rows)), data.index)
        lengths = np.array([[row.size for row in column] for column in rows]).T
        # Rows of one length make a tensor. There is one tensor for each length.
        scored: dict[str, list[Any]] = {}
        for length in np.unique(lengths, axis=0):
            places = np.flatnonzero((lengths == length).all(axis=1))
            alike = [np.stack([column[place] for place in places]) for column in rows]
            for name, predictions in self._called(self._shaped(alike)).items():
                into = scored.setdefault(name, [None] * len(lengths))
                for place, row in zip(places, predictions, strict=True):
                    into[place] = row
        return _as_one(
            {name: _stacked(predictions) for name, predictions in scored.items()}, data.index
        )

    def _shaped(self, flat: Sequence[Any]) -> list[Any]:
        return [
            _shaped(rows, argument) for rows, argument in zip(flat, self._arguments, strict=True)
        ]

    def _called(self, arrays: Sequence[Any]) -> dict[str, Any]:
        import torch

        tensors = [
            torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for array in arrays
        ]
        with torch.no_grad():
            if self._by_name:
                names = [argument["name"] for argument in self._arguments]
                outputs = self._network(**dict(zip(names, tensors, strict=True)))
            else:
                outputs = self._network(*tensors)
        return {name: output.cpu().numpy() for name, output in named_outputs(outputs).items()}


def _rows_of(data: pd.DataFrame, argument: Mapping[str, Any]) -> Any:
    """The flat rows of an argument: a matrix, or a list of arrays where they differ in length."""
    columns, dtype = argument["columns"], np.dtype(argument["dtype"])
    if len(columns) > 1 or not argument["row_shape"]:
        return data[columns].to_numpy(dtype=dtype)
    rows = [np.asarray(row, dtype=dtype).reshape(-1) for row in data[columns[0]]]
    return np.stack(rows) if len({row.size for row in rows}) == 1 else rows


def _shaped(flat: Any, argument: Mapping[str, Any]) -> Any:
    shape = argument["row_shape"]
    try:
        return flat.reshape(len(flat), *shape)
    except ValueError:
        raise ValueError(
            f"A row of the column {argument['columns'][0]!r} has {flat.shape[1]} numbers, and the "
            f"model takes rows of shape {shape}."
        ) from None


def _stacked(rows: list[Any]) -> Any:
    if len({row.shape for row in rows}) > 1:
        raise ValueError(
            "Rows of different lengths have predictions of different shapes, which make no "
            "column: predict for rows of one length at a time, or pad them."
        )
    return np.stack(rows)


def _as_one(outputs: dict[str, Any], index: Any = None) -> Any:
    """The only output; or several, as a column each where the rows came as a DataFrame."""
    if "" in outputs:
        return outputs[""]
    if index is None:
        return outputs
    columns = {
        name: output if output.ndim == 1 else output.tolist() for name, output in outputs.items()
    }
    return pd.DataFrame(columns, index=index)
