"""Other ways to predict in Spark: each makes what adds a column of predictions to a DataFrame.

All take a network, its columns (several of numbers, or one of arrays) and a path that is free.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Predict = Callable[[Any], Any]
WIDTHS = {"scalar": 33, "array": 64}


def plain(network: Any, columns: list[str], _: str) -> Predict:
    """A function of pandas that one writes by hand: the model comes with it."""
    import pandas as pd
    from pyspark.sql import SparkSession, functions

    content = SparkSession.active().sparkContext.broadcast(network)

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import torch

        model = content.value
        with torch.inference_mode():
            for batch in batches:
                several = isinstance(batch, tuple)
                rows = np.column_stack(batch) if several else np.stack(batch.to_numpy())
                yield pd.Series(model(torch.from_numpy(rows)).squeeze(1).double().numpy())

    def score(frame: Any) -> Any:
        kind: Any = functions  # Its types allow no iterators of tuples.
        udf = kind.pandas_udf(predict, "double", kind.PandasUDFType.SCALAR_ITER)
        return frame.withColumn("prediction", udf(*columns))

    return score


def spark_udf(network: Any, columns: list[str], path: str) -> Predict:
    """MLflow's own function, with the network as MLflow's own flavor saves it."""
    import mlflow
    import numpy as np
    import pandas as pd
    from mlflow.models import infer_signature
    from pyspark.sql.functions import struct

    several = len(columns) > 1
    rows = np.zeros((2, len(columns) if several else WIDTHS["array"]), dtype=np.float32)
    signature = infer_signature(
        pd.DataFrame(rows, columns=columns) if several else rows, rows[:, :1]
    )
    options = {"serialization_format": "pickle", "pip_requirements": []}
    mlflow.pytorch.save_model(network, path, signature=signature, **options)
    given = struct(*columns) if several else columns[0]
    load = {"result_type": "double", "env_manager": "local"}

    def score(frame: Any) -> Any:
        udf = mlflow.pyfunc.spark_udf(frame.sparkSession, path, **load)
        return frame.withColumn("prediction", udf(given))

    return score


def horovod(network: Any, columns: list[str], _: str) -> Predict:
    """Horovod's TorchModel, as its estimator returns it."""
    import torch

    # horovod.spark.torch imports it at its top for fit alone.
    stand_in: Any = types.SimpleNamespace(SummaryWriter=None)
    sys.modules.setdefault("torch.utils.tensorboard", stand_in)

    class Joined(torch.nn.Module):
        """The network with an argument for each column, as Horovod calls it."""

        def forward(self, *columns: Any) -> Any:
            return network(torch.cat(columns, dim=1))

    several = len(columns) > 1

    def score(frame: Any) -> Any:
        from horovod.spark.torch import TorchModel
        from pyspark.sql.types import FloatType

        label = {"spark_data_type": FloatType, "is_sparse_vector_only": False, "shape": 1}
        model = TorchModel(
            history=None,
            model=Joined().eval() if several else network,
            feature_columns=columns,
            input_shapes=[[-1, 1]] * len(columns) if several else [[-1, WIDTHS["array"]]],
            label_columns=["label"],
            _metadata={"label": {**label, "intermediate_format": "nochange", "max_size": 1}},
        )
        return model.setOutputCols(["prediction"]).transform(frame)

    return score
