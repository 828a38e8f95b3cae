"""A network as a graph that ``torch.export`` makes, checked against the network's own answers."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .columns import Column, tensors
from .outputs import by_label
from .predictor import Description
from .torch_export import NotExportableError, first_line, quiet_export

if TYPE_CHECKING:
    import torch

# From an example of one row, torch makes a graph for one row.
_ROWS = 3
# The length of an example's list whose length is unknown.
_LENGTH = 4
# The graph's kernels compute in another order than the network's.
_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-3, 1e-4


def example_of(columns: Sequence[Column], rows: int) -> dict[str, torch.Tensor]:
    """Rows that a network takes: random numbers, whole numbers 0, black images."""
    import torch

    random = np.random.default_rng(rows)
    batch: dict[str, torch.Tensor] = {}
    for column in columns:
        if column.kind == "image":
            shape = (rows, *(size or 1 for size in column.row_shape))
            batch[column.name] = torch.zeros(shape, dtype=torch.uint8)
            continue
        shape = (rows, *(_LENGTH if size is None else size for size in column.row_shape))
        numbers = random.standard_normal(int(np.prod(shape)))
        dtype = np.dtype(column.dtype)
        flat = numbers.astype(dtype) if dtype.kind == "f" else np.zeros(len(numbers), dtype)
        array = pa.array(flat)
        for size in reversed(shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        batch.update(tensors(column, array))
    return batch


def exported(network: torch.nn.Module, description: Description) -> bytes:
    """Returns a network as a file of ``torch.export``, for any number of rows.

    Args:
        network: On the CPU, in evaluation mode.
        description: What it takes and returns.

    Raises:
        NotExportableError: It cannot be exported, or its graph answers otherwise.
    """
    import torch

    if not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "AUTO"):
        raise NotExportableError(f"that needs torch 2.6 or later, and this is {torch.__version__}")
    positional, named = description.inputs(example_of(description.columns, _ROWS))
    names = list(inspect.signature(network.forward).parameters)[: len(positional)]
    # Every size may vary as far as the network allows it; what is fixed is found by the checks.
    shapes = {
        name: {0: torch.export.Dim.AUTO, **_free(description, name)} for name in (*names, *named)
    }
    try:
        with quiet_export(), torch.no_grad():
            program = torch.export.export(network, positional, named, dynamic_shapes=shapes)
            stream = io.BytesIO()
            torch.export.save(program, stream)
            graph = load_graph(stream.getvalue())
    except Exception as error:  # Tracing runs the network's own code.
        raise NotExportableError(first_line(error)) from error
    for rows in (_ROWS, 1, 2 * _ROWS + 1):
        _require_same(network, graph, description, rows)
    return stream.getvalue()


def load_graph(content: bytes, device: str = "cpu") -> Any:
    """The network of a file of ``torch.export``."""
    import torch

    program = torch.export.load(io.BytesIO(content))
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module()


def _free(description: Description, argument: str) -> dict[int, Any]:
    """The dimension of an argument's lists, where they have no known length."""
    import torch

    columns = description.inputs.arguments.get(argument, description.inputs.arguments.get("", ()))
    free = [
        column
        for column in description.columns
        if column.name in columns and None in column.row_shape
    ]
    return {1: torch.export.Dim.AUTO} if free else {}


def _require_same(network: Any, graph: Any, description: Description, rows: int) -> None:
    import torch

    positional, named = description.inputs(example_of(description.columns, rows))
    labels = list(description.outputs)
    with torch.no_grad():
        expected = by_label(network(*positional, **named), labels)
        try:
            outputs = by_label(graph(*positional, **named), labels)
        except Exception as error:
            raise NotExportableError(
                f"its graph refuses {rows} rows: {first_line(error)}"
            ) from error
    if not _are_same(outputs, expected):
        raise NotExportableError(f"its graph answers otherwise than the network to {rows} rows")


def _are_same(outputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return all(
        outputs[label].shape == tensor.shape
        and outputs[label].allclose(tensor, _RELATIVE_ERROR, _ABSOLUTE_ERROR, equal_nan=True)
        for label, tensor in expected.items()
    )
