"""The files of a logged network: written once, loaded as anybody will, and asked."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner.tracking.models import columns as model_columns

if TYPE_CHECKING:
    import torch

GRAPH_FILE = "model.pt2"
# Of the copy in the model, which must not be taken for another file by Python's imports.
_LOADER = "sparkdl_runner_model_columns_1"
_MAY_UNPICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """What ``mlflow.models.Model.log`` takes as a flavor: its ``save_model`` writes a model.

    MLflow's own for torch exports a second time, takes no columns, and leaves it to whoever loads
    the model to find out that it does not answer.
    """

    data: Path
    """A folder with the network: a graph, or what MLflow has pickled."""
    is_graph: bool
    columns: Sequence[str] | None
    row_shape: Sequence[int]
    """Of one row, for columns; see ``model_columns.ColumnModel``."""
    example: torch.Tensor
    """Rows that the network was not exported with."""
    expected: torch.Tensor
    """The network's output for ``example``."""

    def as_given(self, rows: torch.Tensor) -> Any:
        """Rows as whoever uses the model has them: an array, or a DataFrame of the columns."""
        import pandas as pd

        numbers = rows.numpy()
        if self.columns is None:
            return numbers
        if len(self.columns) == 1 and numbers.ndim > 1:
            return pd.DataFrame({self.columns[0]: [row.reshape(-1).tolist() for row in numbers]})
        return pd.DataFrame(numbers.reshape(len(numbers), -1), columns=list(self.columns))

    def save_model(self, path: str, mlflow_model: Any, **options: Any) -> None:
        """Writes the model, and asks it.

        Raises:
            RuntimeError: What was written does not load, or answers otherwise than the network.
        """
        import torch
        from mlflow import pyfunc

        loader, code_paths = "mlflow.pytorch", list(options.pop("code_paths", None) or ())
        options.pop("validate_serving_input", None)
        mlflow_model.signature = options.pop("signature", None)
        if self.columns is not None:
            loader = _LOADER
            about = {
                "columns": list(self.columns),
                "row_shape": list(self.row_shape),
                "dtype": str(self.example.numpy().dtype),
            }
            (self.data / model_columns.COLUMNS_FILE).write_text(json.dumps(about))
            copy = self.data.with_name(f"{_LOADER}.py")
            # No file to copy where this package is a zip, as spark-submit's --py-files has it.
            copy.write_text(inspect.getsource(model_columns))
            code_paths.append(str(copy))
        # So that mlflow.pytorch.load_model finds the network.
        where = {"model_data": f"data/{self.data.name}", "code": "code" if code_paths else None}
        mlflow_model.add_flavor("pytorch", pytorch_version=str(torch.__version__), **where)
        pyfunc.save_model(
            path,
            loader_module=loader,
            data_path=str(self.data),
            code_paths=code_paths or None,
            mlflow_model=mlflow_model,
            # A graph stays on the device that it was exported for.
            model_config={"device": "cpu"} if self.is_graph else None,
            **options,
        )
        self._ask(path)

    def _ask(self, path: str) -> None:
        import numpy as np
        from mlflow import pyfunc

        with _allowed_to_unpickle():
            loaded = pyfunc.load_model(path, suppress_warnings=True)
        found = np.asarray(loaded.predict(self.as_given(self.example)))
        expected = self.expected.numpy()
        if found.shape != expected.shape or not np.allclose(
            found, expected, rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            raise RuntimeError(
                "log_model: the model was written, and answers otherwise than the network once it "
                "is loaded again; it is not logged."
            )


@contextmanager
def _allowed_to_unpickle() -> Iterator[None]:
    """Lets MLflow load what was pickled here a moment ago."""
    before = os.environ.get(_MAY_UNPICKLE)
    os.environ[_MAY_UNPICKLE] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MAY_UNPICKLE]
        else:
            os.environ[_MAY_UNPICKLE] = before
