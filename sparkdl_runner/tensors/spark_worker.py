"""Prediction in Spark's Python workers: loads the network once, and predicts batch by batch."""

from __future__ import annotations

import functools
import gc
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .columns import Column
from .predictor import Description, Predictor, threads

if TYPE_CHECKING:
    import pyarrow as pa

# The networks that this Python worker has loaded, by their content and device.
_loaded: OrderedDict[tuple[str, str], Any] = OrderedDict()
_MOST_LOADED = 2


class PackedNetwork:
    """A network on its way to Python workers, each of which unpacks it once.

    Args:
        key: By which workers recognise it: see ``base.sent_file.key_of``.
        content: Its ``value`` is the network, in a worker: a broadcast, or a ``SentFile``. Either
            reaches each host once, and not with each task.
        is_graph: Whether that is a file of ``torch.export``.
    """

    def __init__(self, key: str, content: Any, *, is_graph: bool) -> None:
        self.key = key
        self._is_graph = is_graph
        self._content = content

    def on(self, device: str) -> Any:
        """The network, on a device of this Python worker."""
        place = self.key, device
        if place not in _loaded:
            if self._is_graph:
                from .exporting import load_graph

                _loaded[place] = load_graph(self._content.value, device)
            else:
                _loaded[place] = _unpickled(self._content.value).to(device)
            while len(_loaded) > _MOST_LOADED:
                _loaded.popitem(last=False)
        _loaded.move_to_end(place)
        return _loaded[place]


def _unpickled(content: bytes) -> Any:
    try:
        return pickle.loads(content)  # noqa: S301 - it came with Spark's own task
    except Exception as error:
        raise RuntimeError(
            "The model's network could not be unpickled in Spark's Python worker "
            f"({type(error).__name__}: {error}). If it is of a module of your own, that must be "
            "importable on every host: pass it with --py-files or sc.addPyFile (through "
            "Spark Connect with addArtifacts(…, pyfile=True)), or define the network in the "
            "notebook."
        ) from error


def device_of(task: Any) -> str:
    """The task's own GPU as torch names it, if it has one; else the CPU.

    Args:
        task: Spark's TaskContext, or None.
    """
    import torch

    gpu = None if task is None else task.resources().get("gpu")
    if gpu is None or not gpu.addresses or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{_device_number(gpu.addresses[0])}"


def _device_number(address: str) -> int:
    """Which of torch's devices Spark's address is; the first one if none is.

    torch counts the devices that are visible. Spark's numbers count these too, as the ranks of a
    training take them, or the devices of the host.
    """
    import torch

    count = torch.cuda.device_count()
    if address.isdigit() and int(address) < count:
        return int(address)
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if address not in names:
        known = map(torch.cuda.get_device_properties, range(count))
        names = [f"GPU-{getattr(gpu, 'uuid', '')}" for gpu in known]  # Older torch knows none.
    return names.index(address) if address in names[:count] else 0


class Prediction:
    """Computes the predictions of a Spark task, batch by batch.

    Args:
        packed: The network.
        description: What it takes and returns.
        batch_size: How many rows it is given at once.
    """

    def __init__(self, packed: PackedNetwork, description: Description, batch_size: int) -> None:
        self._packed = packed
        self._description = description
        self._batch_size = batch_size

    def of_arrow(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """Predicts for batches of Arrow arrays, one for each column.

        Yields:
            The column of predictions, or a struct of them if there are several.
        """
        return self._of_each(batches, lambda column, array: array)

    def of_pandas(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Predicts for batches of pandas series, one for each column.

        Yields:
            A series, or a DataFrame of several columns.
        """
        import pandas as pd
        import pyarrow as pa

        from .pandas_values import arrow_of

        def as_pandas(column: pa.Array) -> Any:
            # Arrow's arrays as they are: of NumPy's, pyspark would make a list for each row.
            return pd.array(column, dtype=pd.ArrowDtype(column.type))

        def as_arrow(column: Column, series: pd.Series) -> pa.Array:
            # Java has filled or refused the nulls among numbers, unless a mask is to show them.
            return arrow_of(column, series, keeps_nan=column.nulls != "mask")

        for made in self._of_each(batches, as_arrow):
            if pa.types.is_struct(made.type):
                columns = dict(zip(_names(made.type), map(as_pandas, made.flatten()), strict=True))
                yield pd.DataFrame(columns, copy=False)
            else:
                yield pd.Series(as_pandas(made))

    def _of_each(self, batches: Iterator[Any], arrow_of: Any) -> Iterator[pa.Array]:
        from pyspark import TaskContext

        _freeze_modules()
        task = TaskContext.get()
        device = device_of(task)
        predictor = Predictor(self._packed.on(device), self._description, self._batch_size, device)
        with threads(None if task is None else task.cpus()):
            for batch in batches:
                columns = batch if isinstance(batch, tuple) else (batch,)
                arrays = list(map(arrow_of, self._description.columns, columns))
                rows = len(columns[0])
                yield _as_arrow(predictor.predict(arrays, rows), rows)


@functools.cache
def _freeze_modules() -> None:
    """Takes what is imported out of Python's garbage collection, once in this Python worker.

    Spark has each worker collect garbage after each task, which looks at all objects of torch: a
    tenth of a second, for rows that may take less.
    """
    import torch  # noqa: F401

    gc.freeze()


def field(number: int, name: str) -> str:
    """The name of a column of predictions in the struct, by the number of its label."""
    return f"p{number}_{name}"


def _names(struct: pa.StructType) -> list[str]:
    return [struct.field(number).name for number in range(struct.num_fields)]


def _as_arrow(predictions: dict[str, dict[str, Array]], rows: int) -> pa.Array:
    """The only column, or a struct of several: a struct takes Python and Java longer."""
    import pyarrow as pa

    arrays, names = [], []
    for number, columns in enumerate(predictions.values()):
        for name, numbers in columns.items():
            offsets = np.zeros(rows + 1, dtype=np.int32)
            if numbers.dtype == np.bool_:
                # As Spark's evaluators take several labels: their numbers.
                np.cumsum(numbers.sum(axis=1), out=offsets[1:])
                flat = np.nonzero(numbers)[1]
            else:
                offsets[1:] = np.arange(1, rows + 1) * (numbers.size // max(rows, 1))
                flat = numbers.reshape(-1)
            array = pa.array(flat.astype(np.float64, copy=False))
            if numbers.ndim > 1:
                array = pa.ListArray.from_arrays(pa.array(offsets), array)
            arrays.append(array)
            names.append(field(number, name))
    return arrays[0] if len(arrays) == 1 else pa.StructArray.from_arrays(arrays, names)
