"""A network as a flavor of MLflow's: how its files, columns and signature become a model."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner.tracking.models.exported_graph import is_same

if TYPE_CHECKING:
    import torch

GRAPH_FILE = "model.pt2"
# The copy in the model has a name of its own, lest Python import another file in its place.
_LOADER = "sparkdl_runner_model_columns_1"
_MAY_UNPICKLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


@dataclass(frozen=True, kw_only=True)
class NetworkFlavor:
    """What ``mlflow.models.Model.log`` takes as a flavor: its ``save_model`` writes a model.

    MLflow's own flavor of torch would export the network a second time, takes no columns, and does
    not check the answers of what it has written.
    """

    data: Path
    """A folder with the network: a graph, or what MLflow has pickled."""
    is_graph: bool
    columns: Sequence[str] | None
    shape: Sequence[int]
    """What the network takes, ``[rows, …]``, with -1 for each size that may vary."""
    example: torch.Tensor
    """Rows that the network takes."""
    fresh: torch.Tensor
    """Rows that the network was not exported with."""
    expected: torch.Tensor
    """The network's output for ``fresh``."""

    def as_given(self, rows: torch.Tensor) -> Any:
        """Rows as whoever uses the model has them: an array, or a DataFrame of the columns."""
        import pandas as pd

        numbers = rows.numpy()
        if self.columns is None:
            return numbers
        if self._has_arrays():
            return pd.DataFrame({self.columns[0]: [row.reshape(-1).tolist() for row in numbers]})
        return pd.DataFrame(numbers.reshape(len(numbers), -1), columns=list(self.columns))

    def signature(self) -> Any:
        """The network's inputs and outputs, by which ``spark_udf`` knows Spark's types."""
        from mlflow.models import ModelSignature
        from mlflow.types import DataType
        from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

        dtype = self.example.numpy().dtype
        if self.columns is None:
            inputs = [TensorSpec(dtype, tuple(self.shape))]
        else:
            # The widest type of its kind: MLflow lets narrower ones in, and the model casts them.
            number = {"f": DataType.double, "b": DataType.boolean}.get(dtype.kind, DataType.long)
            kind = Array(number) if self._has_arrays() else number
            inputs = [ColSpec(kind, name) for name in self.columns]
        dtype, ndim = self.expected.numpy().dtype, self.expected.ndim
        found = DataType.from_numpy_type(dtype)
        if found is None or ndim not in (1, 2):
            output = TensorSpec(dtype, (-1, *self.expected.shape[1:]))
        else:
            # The prediction for one row. A tensor would be an array of arrays in Spark.
            output = ColSpec(found if ndim == 1 else Array(found))
        return ModelSignature(Schema(inputs), Schema([output]))

    def save_model(
        self,
        path: str,
        mlflow_model: Any,
        *,
        signature: Any = None,
        code_paths: Sequence[str] | None = None,
        validate_serving_input: bool = False,
        **options: Any,
    ) -> None:
        """Writes the model, and checks its answers.

        Raises:
            RuntimeError: What was written answers otherwise than the network.
        """
        import torch
        from mlflow import pyfunc

        loader, code = "mlflow.pytorch", list(code_paths or ())
        if self.columns is not None:
            loader = _LOADER
            code.append(self._write_loader())
        mlflow_model.signature = signature or self.signature()
        # So that mlflow.pytorch.load_model finds the network.
        where = {"model_data": f"data/{self.data.name}", "code": "code" if code else None}
        mlflow_model.add_flavor("pytorch", pytorch_version=str(torch.__version__), **where)
        pyfunc.save_model(
            path,
            loader_module=loader,
            data_path=str(self.data),
            code_paths=code or None,
            mlflow_model=mlflow_model,
            input_example=self.as_given(self.example),
            # A graph stays on the device that it was exported for.
            model_config={"device": "cpu"} if self.is_graph else None,
            **options,
        )
        self._check_answers(path)

    def _has_arrays(self) -> bool:
        return self.columns is not None and len(self.columns) == 1 and self.example.ndim > 1

    def _write_loader(self) -> str:
        """Writes what loads the model, and what it needs to know. Returns the file of its code."""
        from sparkdl_runner.tracking.models import column_model  # It imports mlflow.

        row_shape = list(self.shape[1:])
        if row_shape.count(-1) > 1:
            row_shape = list(self.example.shape[1:])
        about = {
            "columns": list(self.columns or ()),
            "row_shape": row_shape,
            "dtype": str(self.example.numpy().dtype),
        }
        (self.data / column_model.COLUMNS_FILE).write_text(json.dumps(about))
        copy = self.data.with_name(f"{_LOADER}.py")
        # There is no file to copy where this package is a zip, as in spark-submit's --py-files.
        copy.write_text(inspect.getsource(column_model))
        return str(copy)

    def _check_answers(self, path: str) -> None:
        import numpy as np
        import torch
        from mlflow import pyfunc

        with _unpickling_allowed():
            loaded = pyfunc.load_model(path, suppress_warnings=True)
        found = np.asarray(loaded.predict(self.as_given(self.fresh)))
        if not is_same(torch.as_tensor(found, dtype=self.expected.dtype), self.expected):
            raise RuntimeError(
                "log_model: the model was written, and answers otherwise than the network once it "
                "is loaded again; it is not logged."
            )


@contextmanager
def _unpickling_allowed() -> Iterator[None]:
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
