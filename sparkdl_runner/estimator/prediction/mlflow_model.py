"""A ``TorchModel`` as a model of MLflow's, for Spark jobs and servers."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl_runner import tensors
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.tensors import saved
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.outputs import PREDICTION
from sparkdl_runner.tracking.models.flavor_arguments import taken_by, version_of

if TYPE_CHECKING:
    import pandas as pd

    from sparkdl_runner.estimator.model import TorchModel

# The copy in the model has a name of its own, lest Python import another one in its place.
_COPY = "sparkdl_runner_network_1"
_TYPES = {"f": "double", "i": "long", "u": "long", "b": "boolean"}


def log_torch_model(
    model: TorchModel,
    *,
    run_id: str | None = None,
    input_example: pd.DataFrame | None = None,
    name: str = "model",
    registered_model_name: str | None = None,
    alias: str | None = None,
    **options: Any,
) -> Any:
    """Logs a fitted model to an MLflow run, as one that takes and returns DataFrames.

    It loads by ``mlflow.pyfunc.load_model`` and ``mlflow.pyfunc.spark_udf`` and is served by
    ``mlflow models serve``, also where this package is not installed: it carries a copy of what it
    needs.

    Args:
        model: A model that knows what its columns hold, as a fitted one does.
        run_id: The run; by default that of the model's training.
        input_example: Rows of the columns that the model takes; by default made up.
        name: What the model is called in the run.
        registered_model_name: Also registers it under this name.
        alias: Also gives this alias to what was registered.
        **options: Further arguments of ``mlflow.pyfunc.log_model``.

    Returns:
        MLflow's ``ModelInfo``.

    Raises:
        ValueError: It is not known what the columns hold, or there is an alias and no name.
    """
    import mlflow
    from mlflow.models import Model

    if alias is not None and registered_model_name is None:
        raise ValueError(
            f"alias is {alias!r}, and there is no registered_model_name for it. Give both, or "
            "neither."
        )
    with written(model, input_example, name) as arguments:
        known = {
            "artifact_path": None,
            "flavor": mlflow.pyfunc,
            "name": name,
            "run_id": run_id or model.run_id,
            "registered_model_name": registered_model_name,
            **arguments,
            **options,
        }
        info = Model.log(**taken_by(Model.log, known))
    if alias is not None:
        version = version_of(info, registered_model_name)
        mlflow.MlflowClient().set_registered_model_alias(registered_model_name, alias, version)
    return info


@contextmanager
def written(
    model: TorchModel, input_example: pd.DataFrame | None = None, name: str = "model"
) -> Iterator[dict[str, Any]]:
    """Writes a model's files; yields what ``mlflow.pyfunc.save_model`` takes to make one of them.

    Raises:
        ValueError: It is not known what the columns hold.
    """
    columns = model.description.columns
    if not columns:
        raise ValueError(
            "The model does not know the types of its columns: make it with columns="
            "network_columns(df.schema, names), or by TorchEstimator.fit."
        )
    example = made_up(columns) if input_example is None else input_example
    with tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as temporary:
        data, code = Path(temporary, "network"), Path(temporary, _COPY)
        data.mkdir()
        form, reason = saved.save(
            data,
            model.get_model(),
            graph=model._graph,
            description=model.description,
            factory=model._factory,
            about={"names": model.output_names(), "batch_size": model.getOrDefault("batch_size")},
        )
        if form == "pickle":
            tell(
                f"the model {name!r} cannot be exported ({reason}) and was saved "
                "by pickle: load it only where you trust its origin.",
                sys.stdout,
            )
        _copy_package(code)
        yield {
            "loader_module": f"{_COPY}.served",
            "data_path": str(data),
            "code_paths": [str(code)],
            "signature": _signature(model, columns),
            "input_example": example[[column.name for column in columns]],
            "pip_requirements": _requirements(form, columns),
        }


def made_up(columns: tuple[Column, ...], rows: int = 2) -> pd.DataFrame:
    """Rows that a network takes, as a person would give them."""
    import io

    import pandas as pd

    random = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for column in columns:
        if column.image is not None:
            from PIL import Image

            height, width, mode = column.image
            stream = io.BytesIO()
            Image.new(mode, (width, height)).save(stream, format="PNG")
            made[column.name] = [stream.getvalue()] * rows
            continue
        shape = (rows, *(4 if size is None else size for size in column.row_shape))
        is_float = np.dtype(column.dtype).kind == "f"
        numbers = random.random(shape).round(3) if is_float else np.zeros(shape, column.dtype)
        made[column.name] = numbers if numbers.ndim == 1 else numbers.tolist()
    return pd.DataFrame(made)


def _signature(model: TorchModel, columns: tuple[Column, ...]) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema

    def type_of(column: Column) -> Any:
        if column.kind == "image":
            return DataType.binary
        # The widest type of its kind: MLflow lets narrower ones in.
        kind: Any = DataType[_TYPES[np.dtype(column.dtype).kind]]
        for _ in column.shape:
            kind = Array(kind)
        return kind

    inputs = [ColSpec(type_of(column), column.name) for column in columns]
    outputs = []
    # MLflow's spark_udf gives the first column where it is asked for one number.
    for label, names in model.output_names().items():
        several = model.description.outputs[label].columns
        for name, column in sorted(names.items(), key=lambda item: item[0] != PREDICTION):
            kind = Array(DataType.double) if several[name] else DataType.double
            outputs.append(ColSpec(kind, column))
    return ModelSignature(Schema(inputs), Schema(outputs))


def _requirements(form: str, columns: tuple[Column, ...]) -> list[str]:
    packages = ["torch", "numpy", "pandas", "pyarrow", "safetensors"]
    packages += ["pillow"] if any(column.kind == "image" for column in columns) else []
    packages += ["cloudpickle"] if form == "pickle" else []
    return [f"{package}=={metadata.version(package).partition('+')[0]}" for package in packages]


def _copy_package(folder: Path) -> None:
    """Copies the package of networks, also out of a zip, as in spark-submit's --py-files."""
    folder.mkdir()
    for file in resources.files(tensors).iterdir():
        if file.name.endswith(".py"):
            with file.open("rb") as source, (folder / file.name).open("wb") as target:
                shutil.copyfileobj(source, target)
