"""scikit-learn's tables as data sets on disk, and loaders over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from torch import nn

from sparkdl_runner.data import SparkDatasetConverter
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.manifest import Manifest

TABLES = ("digits", "breast_cancer", "diabetes")
LOSSES = {
    "digits": nn.functional.cross_entropy,
    "breast_cancer": nn.functional.binary_cross_entropy_with_logits,
    "diabetes": nn.functional.mse_loss,
}


def write_table(directory: Path, columns: dict[str, Any]) -> None:
    """Writes columns ``[rows]`` or ``[rows, size]`` as a data set."""
    table = pa.table({name: _column(values) for name, values in columns.items()})
    pq.write_table(table, directory / "part-0.parquet", row_group_size=100)
    local = fs.LocalFileSystem()
    describe_parquet(local, str(directory), ["part-0.parquet"]).write(local, str(directory))


def write_sklearn(directory: Path, name: str, rows: slice = slice(None)) -> None:
    """Writes one of ``TABLES``, or some of its rows, standardized."""
    from sklearn import datasets

    features, label = getattr(datasets, f"load_{name}")(return_X_y=True)
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    if name == "diabetes":
        label = ((label - label.mean()) / label.std()).astype("float32")
    columns = {"features": features.astype("float32"), "label": label}
    write_table(directory, {name: values[rows] for name, values in columns.items()})


def open_table(directory: Path, **options: Any) -> ArrowLoader:
    """A loader over what ``write_table`` wrote."""
    local = fs.LocalFileSystem()
    manifest = Manifest.read(local, str(directory))
    return ArrowLoader(manifest, local, str(directory), **options)


def converter_of(directory: Path) -> SparkDatasetConverter:
    """The same as ranks take it."""
    manifest = Manifest.read(fs.LocalFileSystem(), str(directory))
    return SparkDatasetConverter(directory.as_uri(), [], manifest.rows, manifest=manifest)


def network(name: str) -> nn.Module:
    """A small one for a table, with what depends on generators and on training mode."""
    sizes = {"digits": (64, 10), "breast_cancer": (30, 1), "diabetes": (10, 1)}
    width, outputs = sizes[name]
    hidden = [nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*hidden, nn.Linear(32, outputs))


def _column(values: Any) -> pa.Array:
    values = np.asarray(values)
    if values.ndim == 1:
        return pa.array(values)
    return pa.array(list(values), pa.list_(pa.from_numpy_dtype(values.dtype)))
