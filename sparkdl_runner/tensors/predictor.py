"""A network that predicts: from the columns of a table to the columns of its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .columns import Column, entries, tensors
from .inputs import Inputs
from .outputs import Output, by_label, checked, prediction_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import torch


_BLOCK_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Description:
    """The inputs and outputs of a network, beside its weights.

    Attributes:
        inputs: Which columns are which arguments.
        columns: What each column holds.
        outputs: What the output for each label means.
    """

    inputs: Inputs
    columns: tuple[Column, ...]
    outputs: Mapping[str, Output]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Description:
        """Reads what ``to_json`` has written."""
        inputs = value["inputs"]
        arguments = {name: tuple(columns) for name, columns in inputs["arguments"].items()}
        return cls(
            inputs=Inputs(arguments, tuple(inputs["extra"])),
            columns=tuple(map(Column.from_json, value["columns"])),
            outputs={label: Output(**output) for label, output in value["outputs"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        from .inputs import described

        return {
            "inputs": described(self.inputs),
            "columns": [column.to_json() for column in self.columns],
            "outputs": {
                label: {"task": output.task, "size": output.size}
                for label, output in self.outputs.items()
            },
        }


class Predictor:
    """A network in evaluation mode, and what its columns mean.

    Args:
        network: On the device that it computes on.
        description: What it takes and returns.
        batch_size: How many rows it is given at once.
        device: Where it is.
    """

    def __init__(
        self, network: Any, description: Description, batch_size: int, device: str = "cpu"
    ) -> None:
        self.network = network
        self.description = description
        self.batch_size = batch_size
        self.device = device
        self._matrices = matrices(description)
        arguments = {
            argument: (argument,) if argument in self._matrices else columns
            for argument, columns in description.inputs.arguments.items()
        }
        self._inputs = replace(description.inputs, arguments=arguments)

    def predict(self, arrays: Sequence[pa.Array], rows: int) -> dict[str, dict[str, Array]]:
        """Returns the prediction columns of each label, ``[rows]`` or ``[rows, size]``.

        Args:
            arrays: Of each column, in the order of the description.
            rows: How many there are.
        """
        import torch

        batch: dict[str, torch.Tensor] = {}
        given = {
            column.name: (column, array)
            for column, array in zip(self.description.columns, arrays, strict=True)
        }
        for argument, columns in self._matrices.items():
            dtype = np.dtype(given[columns[0]][0].dtype)
            values = [entries(*given.pop(name))[name] for name in columns]
            matrix = _matrix(values, dtype if dtype.kind == "f" else np.dtype(np.float32))
            batch[argument] = torch.from_numpy(matrix)
        for column, array in given.values():
            batch.update(tensors(column, array))
        parts = []
        with torch.inference_mode():
            for start in range(0, max(rows, 1), self.batch_size):
                end = start + self.batch_size
                part = {name: tensor[start:end] for name, tensor in batch.items()}
                parts.append(self._columns(part))
        return {
            label: {
                name: _joined([part[label][name] for part in parts]) for name in parts[0][label]
            }
            for label in self.description.outputs
        }

    def _columns(self, batch: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        outputs = self._outputs(batch)
        return {
            label: prediction_columns(checked(outputs[label].cpu(), output, label), output.task)
            for label, output in self.description.outputs.items()
        }

    def _outputs(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        on_device = {name: tensor.to(self.device) for name, tensor in batch.items()}
        positional, named = self._inputs(on_device)
        returned = self.network(*positional, **named)
        return by_label(returned, list(self.description.outputs))


def _matrix(columns: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """Columns ``[rows]`` as one matrix ``[rows, columns]``, in a fraction of torch's time.

    Filled by blocks of rows, which a processor's cache holds.
    """
    rows = len(columns[0])
    matrix = np.empty((rows, len(columns)), dtype)
    for start in range(0, rows, _BLOCK_ROWS):
        block = matrix[start : start + _BLOCK_ROWS]
        for place, column in enumerate(columns):
            block[:, place] = column[start : start + _BLOCK_ROWS]
    return matrix


def matrices(description: Description) -> dict[str, Sequence[str]]:
    """The columns of each argument that is a matrix of numbers of one type."""
    columns = {column.name: column for column in description.columns}
    used = [name for names in description.inputs.arguments.values() for name in names]
    return {
        argument: names
        for argument, names in description.inputs.arguments.items()
        if len(names) > 1
        and argument not in columns
        and all(columns[name].kind == "number" and used.count(name) == 1 for name in names)
        and all(columns[name].nulls != "mask" for name in names)
        and len({columns[name].dtype for name in names}) == 1
    }


def _joined(parts: Sequence[torch.Tensor]) -> Array:
    import torch

    whole: Array = (torch.cat(list(parts)) if len(parts) > 1 else parts[0]).numpy()
    return whole


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Has torch compute with so many threads."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
