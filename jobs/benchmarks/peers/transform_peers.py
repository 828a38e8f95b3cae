"""Other ways to predict in Spark: each adds a column of predictions to a DataFrame."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


def plain(network: Any, columns: list[str], frame: Any) -> Any:
    """A function of pandas that one writes by hand: the model comes with it."""
    import pandas as pd
    from pyspark.sql import functions

    content = frame.sparkSession.sparkContext.broadcast(network)

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import torch

        model = content.value
        with torch.inference_mode():
            for batch in batches:
                if isinstance(batch, tuple):
                    rows = np.column_stack(batch)
                else:
                    rows = np.stack(batch.to_numpy())
                found = model(torch.from_numpy(rows))
                yield pd.Series(found.squeeze(1).double().numpy())

    kind: Any = functions  # Its types allow no iterators of tuples.
    udf = kind.pandas_udf(predict, "double", kind.PandasUDFType.SCALAR_ITER)
    return frame.withColumn("prediction", udf(*columns))


def spark_udf(network: Any, columns: list[str], path: str) -> Callable[[Any], Any]:
    """MLflow's own function, with the network as MLflow's own flavor saves it."""
    import mlflow
    import numpy as np
    import pandas as pd
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types import Schema, TensorSpec

    width = len(columns) if len(columns) > 1 else 64
    rows = np.zeros((2, width), dtype=np.float32)
    tensor = Schema([TensorSpec(np.dtype("float32"), (-1, 1))])
    if len(columns) > 1:
        inputs = infer_signature(pd.DataFrame(rows, columns=columns)).inputs
    else:
        inputs = Schema([TensorSpec(np.dtype("float32"), (-1, width))])
    mlflow.pytorch.save_model(
        network,
        path,
        signature=ModelSignature(inputs=inputs, outputs=tensor),
        serialization_format="pickle",
        pip_requirements=[],
    )

    def score(frame: Any) -> Any:
        from pyspark.sql.functions import struct

        udf = mlflow.pyfunc.spark_udf(
            frame.sparkSession, path, result_type="double", env_manager="local"
        )
        given = struct(*columns) if len(columns) > 1 else columns[0]
        return frame.withColumn("prediction", udf(given))

    return score


def horovod(network: Any, columns: list[str], frame: Any) -> Any:
    """Horovod's TorchModel, as its estimator returns it."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        # horovod.spark.torch imports it at its top for fit alone.
        stand_in = types.ModuleType("torch.utils.tensorboard")
        stand_in.SummaryWriter = None  # type: ignore[attr-defined]
        sys.modules["torch.utils.tensorboard"] = stand_in
    from horovod.spark.torch import TorchModel
    from pyspark.sql.types import FloatType

    label = {
        "spark_data_type": FloatType,
        "is_sparse_vector_only": False,
        "shape": 1,
        "intermediate_format": "nochange",
        "max_size": 1,
    }
    if len(columns) > 1:
        network = _joined(network)
    model = TorchModel(
        history=None,
        model=network,
        feature_columns=columns,
        input_shapes=[[-1, 1]] * len(columns) if len(columns) > 1 else [[-1, 64]],
        label_columns=["label"],
        _metadata={"label": label},
    )
    return model.setOutputCols(["prediction"]).transform(frame)


def _joined(network: Any) -> Any:
    """The network with an argument for each column, as Horovod calls it."""
    import torch

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, *columns: Any) -> Any:
            return self.inner(torch.cat(columns, dim=1))

    return Joined().eval()
