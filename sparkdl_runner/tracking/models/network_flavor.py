"""A network as a flavor of MLflow's: how its files, columns and signature become a model."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner.tensors.served import MAY_UNPICKLE
from sparkdl_runner.tracking.models.example import Example
from sparkdl_runner.tracking.models.exported_graph import Shapes, are_same

if TYPE_CHECKING:
    import torch

GRAPH_FILE = "model.pt2"
# The copy in the model has a name of its own, lest Python import another file in its place.
_LOADER = "sparkdl_runner_model_columns_1"


@dataclass(frozen=True, kw_only=True)
class NetworkFlavor:
    """A flavor for ``mlflow.models.Model.log``: its ``save_model`` writes a model.

    MLflow's own flavor of torch would export the network a second time, takes one tensor alone and
    no columns, and does not check the answers of what it has written.
    """

    data: Path
    """A folder with the network: a graph, or what MLflow has pickled."""
    is_graph: bool
    columns: Mapping[str, Sequence[str]] | None
    """For each argument one column of arrays, or a column for each number of a row."""
    shapes: Shapes
    example: Example
    fresh: Example
    """Rows that the network was not exported with."""
    expected: Mapping[str, torch.Tensor]
    """The network's outputs for ``fresh``."""

    def as_given(self, example: Example) -> Any:
        """Rows as users of the model have them: arrays, or a DataFrame of the columns."""
        import pandas as pd

        arrays = {name: tensor.numpy() for name, tensor in example.tensors.items()}
        if self.columns is None:
            return arrays[""] if example.is_one_tensor else arrays
        frame: dict[str, Any] = {}
        for name, columns in self.columns.items():
            numbers = arrays[name]
            if self._has_arrays(name):
                frame[columns[0]] = [row.reshape(-1).tolist() for row in numbers]
            else:
                frame.update(zip(columns, numbers.reshape(len(numbers), -1).T, strict=True))
        return pd.DataFrame(frame)

    def signature(self) -> Any:
        """The network's inputs and outputs, by which ``spark_udf`` knows Spark's types."""
        from mlflow.models import ModelSignature
        from mlflow.types import DataType
        from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

        inputs: list[Any] = []
        for name, tensor in self.example.tensors.items():
            dtype = tensor.numpy().dtype
            if self.columns is None:
                inputs.append(TensorSpec(dtype, tuple(self.shapes[name]), name or None))
                continue
            # The widest type of its kind: MLflow lets narrower ones in, and the model casts them.
            number = {"f": DataType.double, "b": DataType.boolean}.get(dtype.kind, DataType.long)
            kind = Array(number) if self._has_arrays(name) else number
            inputs += [ColSpec(kind, column) for column in self.columns[name]]
        return ModelSignature(Schema(inputs), Schema(self._outputs()))

    def _outputs(self) -> list[Any]:
        from mlflow.types import DataType
        from mlflow.types.schema import Array, ColSpec, TensorSpec

        try:
            arrays = {name: tensor.numpy() for name, tensor in self.expected.items()}
        except TypeError:
            types = ", ".join(str(tensor.dtype) for tensor in self.expected.values())
            raise TypeError(
                f"log_model: the network returns {types}, and MLflow knows only NumPy's types. Log "
                "a module around it that returns one of these, as by .float()."
            ) from None
        kinds = {name: DataType.from_numpy_type(array.dtype) for name, array in arrays.items()}
        # A prediction for one row. A tensor would be an array of arrays in Spark.
        are_columns = all(
            kinds[name] is not None and array.ndim in (1, 2) for name, array in arrays.items()
        )
        if not are_columns or (self.columns is None and "" not in arrays):
            return [
                TensorSpec(array.dtype, (-1, *array.shape[1:]), name or None)
                for name, array in arrays.items()
            ]
        return [
            ColSpec(kinds[name] if array.ndim == 1 else Array(kinds[name]), name or None)
            for name, array in arrays.items()
        ]

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
        is_plain = self.example.is_one_tensor and "" in self.expected
        if self.columns is not None or not is_plain:
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

    def _has_arrays(self, name: str) -> bool:
        """Whether the column of an argument holds arrays."""
        columns = (self.columns or {})[name]
        return len(columns) == 1 and self.example.tensors[name].ndim > 1

    def _write_loader(self) -> str:
        """Writes what loads the model, and what it needs to know. Returns the file of its code."""
        from sparkdl_runner.tracking.models import column_model  # It imports mlflow.

        arguments = []
        for name, tensor in self.example.tensors.items():
            row_shape = list(self.shapes[name][1:])
            if row_shape.count(-1) > 1:
                row_shape = list(tensor.shape[1:])
            columns = None if self.columns is None else list(self.columns[name])
            dtype = str(tensor.numpy().dtype)
            arguments.append(
                {"name": name, "columns": columns, "row_shape": row_shape, "dtype": dtype}
            )
        about = {"arguments": arguments, "by_name": self.example.by_name}
        (self.data / column_model.ARGUMENTS_FILE).write_text(json.dumps(about))
        copy = self.data.with_name(f"{_LOADER}.py")
        # There is no file to copy where this package is a zip, as in spark-submit's --py-files.
        copy.write_text(inspect.getsource(column_model))
        return str(copy)

    def _check_answers(self, path: str) -> None:
        import numpy as np
        import pandas as pd
        import torch
        from mlflow import pyfunc

        with _unpickling_allowed():
            loaded = pyfunc.load_model(path, suppress_warnings=True)
        answers = loaded.predict(self.as_given(self.fresh))
        if "" in self.expected:
            answers = {"": answers}
        tensors = {}
        for name, tensor in self.expected.items():
            # A column of arrays is a Series of lists.
            rows = answers[name].tolist() if isinstance(answers[name], pd.Series) else answers[name]
            tensors[name] = torch.as_tensor(np.asarray(rows), dtype=tensor.dtype)
        if not are_same(tensors, self.expected):
            raise RuntimeError(
                "log_model: the model was written, and answers otherwise than the network once it "
                "is loaded again; it is not logged."
            )


@contextmanager
def _unpickling_allowed() -> Iterator[None]:
    """Lets MLflow load what was pickled here a moment ago."""
    before = os.environ.get(MAY_UNPICKLE)
    os.environ[MAY_UNPICKLE] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[MAY_UNPICKLE]
        else:
            os.environ[MAY_UNPICKLE] = before
