"""The function of Spark's by which a network predicts."""

from __future__ import annotations

import warnings
from typing import Any

from sparkdl_runner.tensors.predictor import Description
from sparkdl_runner.tensors.spark_worker import Prediction, field


def prediction_udf(prediction: Prediction, description: Description) -> Any:
    """Returns a function of columns that makes the column of predictions, or a struct of several.

    Python gets these columns alone, and all others stay in Java. Where Spark can, from 4.1, it
    gets them as Arrow has them.
    """
    from pyspark.sql import functions

    f: Any = functions  # Its types differ from one version of Spark to the next.
    made = result_type(description)
    with warnings.catch_warnings():
        # Spark prefers type hints, which would say that there is one column, or how many.
        warnings.simplefilter("ignore", UserWarning)
        if hasattr(f, "arrow_udf"):
            return f.arrow_udf(prediction.of_arrow, made, f.ArrowUDFType.SCALAR_ITER)
        return f.pandas_udf(prediction.of_pandas, made, f.PandasUDFType.SCALAR_ITER)


def result_type(description: Description) -> str:
    """The type of its result, as Spark writes types."""
    fields = {
        field(number, name): "array<double>" if several else "double"
        for number, output in enumerate(description.outputs.values())
        for name, several in output.columns.items()
    }
    if len(fields) == 1:
        return fields.popitem()[1]
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"
