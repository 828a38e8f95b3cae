"""A network as a graph that ``torch.export`` makes, checked against the network's own answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner.network.torch_export import NotExportableError, first_line, quiet_export

if TYPE_CHECKING:
    import torch

# From an example of one row, torch makes a graph for one row.
MIN_EXAMPLE_ROWS = 2
# The graph's kernels compute in another order than the network's.
RELATIVE_ERROR, ABSOLUTE_ERROR = 1e-3, 1e-4


def answer(network: Any, rows: torch.Tensor) -> torch.Tensor:
    """The network's output for these rows, with the random generator seeded alike each time."""
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = network(rows)
    if not isinstance(found, torch.Tensor):
        raise TypeError(
            f"log_model: the network returns a {type(found).__name__}; expected one tensor. Log a "
            "module around it that returns one."
        )
    return found.detach()


def resized(rows: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """The rows with other sizes by dimension: their values are moved on by one and repeated."""
    import torch

    for dimension, size in sizes.items():
        places = torch.arange(1, size + 1) % rows.shape[dimension]
        rows = rows.index_select(dimension, places)
    return rows.contiguous()


def other_sizes(network: Any, rows: torch.Tensor) -> dict[int, int]:
    """Finds out which sizes may vary, by asking the network.

    Args:
        network: Takes one tensor.
        rows: What it takes, ``[rows, …]``.

    Returns:
        By dimension, a size unlike that of ``rows`` that the network takes as well.
    """
    more_rows = {0: len(rows) + 1}
    found = {}
    for dimension, size in enumerate(rows.shape):
        # torch exports a size of 1 or 0 as a constant. Of 2, one less is such a size.
        tried = [size - 1, size + 1] if size > MIN_EXAMPLE_ROWS else []
        for other in tried if dimension else more_rows.values():
            try:
                answer(network, resized(rows, {**more_rows, dimension: other}))
            except Exception:  # noqa: S112 - the network refuses this size
                continue
            found[dimension] = other
            break
    return found


def export(
    network: torch.nn.Module,
    rows: torch.Tensor,
    others: Mapping[int, int],
    dynamic_shapes: Mapping[int, Any] | None,
    path: Path,
) -> tuple[int, ...]:
    """Exports a network for any number of rows, writes it, and checks what was written.

    Args:
        network: On the CPU, in evaluation mode.
        rows: What it takes, ``[rows, …]``, at least ``MIN_EXAMPLE_ROWS``.
        others: Other sizes that it takes, as ``other_sizes`` finds them.
        dynamic_shapes: Which sizes may vary, as ``torch.export`` takes it for one tensor; by
            default all of ``others`` if torch can export that, else as many as it can.
        path: The file to write.

    Returns:
        The shape that the graph takes, with -1 for each size that may vary.

    Raises:
        NotExportableError: It cannot be exported, or does not answer as the network does.
    """
    import torch

    # Dim.AUTO lets a size vary as far as the network allows it.
    if not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "AUTO"):
        raise NotExportableError(f"that needs torch 2.6 or later, and this is {torch.__version__}")
    if 0 not in others:
        raise NotExportableError(f"it takes {len(rows)} rows, and not {len(rows) + 1}")
    auto = torch.export.Dim.AUTO
    every = dict.fromkeys(others, auto)
    if dynamic_shapes is not None:
        tried = [{0: auto, **dynamic_shapes}]
    else:
        # All may vary; then all but one; then the number of rows alone.
        tried = [every]
        tried += [{one: auto for one in every if one != out} for out in list(every)[1:]]
        tried += [{0: auto}] if len(every) > 2 else []
    problem: NotExportableError | None = None
    for dynamic in tried:
        try:
            return _export(network, rows, dynamic, others, path)
        except NotExportableError as error:
            problem = error
    assert problem is not None  # noqa: S101 - something was tried
    raise problem


def _export(
    network: Any,
    rows: torch.Tensor,
    dynamic: dict[int, Any],
    others: Mapping[int, int],
    path: Path,
) -> tuple[int, ...]:
    import torch

    try:
        with quiet_export():
            program = torch.export.export(network, (rows,), dynamic_shapes=(dynamic,))
            torch.export.save(program, path)
            graph = torch.export.load(path).module()
    except Exception as error:  # Tracing runs the network's own code.
        raise NotExportableError(first_line(error)) from error
    shape = _shape_of_input(program)
    if shape[0] != -1:
        raise NotExportableError(f"its graph takes {shape[0]} rows, no more and no less")
    for dimension, size in others.items():
        if shape[dimension] == -1:
            _require_same(network, graph, resized(rows, {0: others[0], dimension: size}))
    return shape


def is_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two answers differ by no more than the order in which they were computed."""
    if found.shape != expected.shape:
        return False
    return bool(found.allclose(expected, RELATIVE_ERROR, ABSOLUTE_ERROR, equal_nan=True))


def _require_same(network: Any, graph: Any, rows: torch.Tensor) -> None:
    expected = answer(network, rows)
    try:
        found = answer(graph, rows)
    except Exception as error:
        raise NotExportableError(
            f"its graph refuses rows of shape {list(rows.shape)}: {first_line(error)}"
        ) from error
    if not is_same(found, expected):
        raise NotExportableError(
            f"its graph answers otherwise than the network to rows of shape {list(rows.shape)}"
        )


def _shape_of_input(program: Any) -> tuple[int, ...]:
    name = program.graph_signature.user_inputs[0]
    node = next(node for node in program.graph.nodes if node.name == name)
    return tuple(size if isinstance(size, int) else -1 for size in node.meta["val"].shape)
