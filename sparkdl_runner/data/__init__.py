"""From a Spark DataFrame to balanced, deterministic, resumable batches.

On the driver, :func:`make_spark_converter` writes a DataFrame where every rank can read it; in a
rank, ``converter.make_torch_dataloader(…)`` opens a loader over that rank's shard. Importing this
package imports neither torch, pyspark nor petastorm; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_runner.data.batches.loader import ArrowLoader as ArrowLoader
    from sparkdl_runner.data.consumers.iterable_dataset import BatchDataset as BatchDataset
    from sparkdl_runner.data.consumers.map_dataset import RowDataset as RowDataset
    from sparkdl_runner.data.consumers.mixture import MixedLoader as MixedLoader
    from sparkdl_runner.data.consumers.spark_dataset_converter import (
        SparkDatasetConverter as SparkDatasetConverter,
    )
    from sparkdl_runner.data.consumers.tf_dataset import TFDatasetContext as TFDatasetContext
    from sparkdl_runner.data.convert.converter import make_spark_converter as make_spark_converter
    from sparkdl_runner.data.convert.permanent import write_conversion as write_conversion
    from sparkdl_runner.data.dataset.leftovers import sweep_leftovers as sweep_leftovers
    from sparkdl_runner.data.errors import ConversionError as ConversionError
    from sparkdl_runner.data.errors import DatasetError as DatasetError
    from sparkdl_runner.data.errors import NoManifestError as NoManifestError
    from sparkdl_runner.data.errors import StateError as StateError

_HOMES = {
    "ArrowLoader": "batches.loader",
    "BatchDataset": "consumers.iterable_dataset",
    "ConversionError": "errors",
    "DatasetError": "errors",
    "MixedLoader": "consumers.mixture",
    "NoManifestError": "errors",
    "RowDataset": "consumers.map_dataset",
    "SparkDatasetConverter": "consumers.spark_dataset_converter",
    "StateError": "errors",
    "TFDatasetContext": "consumers.tf_dataset",
    "make_spark_converter": "convert.converter",
    "sweep_leftovers": "dataset.leftovers",
    "write_conversion": "convert.permanent",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
