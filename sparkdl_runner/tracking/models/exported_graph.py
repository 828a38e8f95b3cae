"""A network as a graph that ``torch.export`` made, asked once whether it answers as the network."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# An exported graph takes any number of rows only if its example had several.
MIN_EXAMPLE_ROWS = 2
# Of answers computed by other kernels, in another order.
_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-3, 1e-4


class NotExportableError(Exception):
    """Why a network is no graph, in one line."""


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


def export(
    network: torch.nn.Module,
    rows: torch.Tensor,
    dynamic_shapes: Mapping[int, Any] | None,
    path: Path,
) -> tuple[tuple[int, ...], list[int]]:
    """Exports a network for any number of rows, writes it, and asks what was written.

    Args:
        network: On the CPU, in evaluation mode.
        rows: What it takes, ``[rows, …]``, at least ``MIN_EXAMPLE_ROWS``.
        dynamic_shapes: Which sizes may vary, as ``torch.export`` takes it for one tensor; by
            default all sizes of which the network itself takes others.
        path: The file to write.

    Returns:
        The shape that the graph takes, with -1 for each size that may vary; and the dimensions in
        which the network takes other sizes, and the graph does not.

    Raises:
        NotExportableError: It cannot be exported, or does not answer as the network does.
    """
    import torch

    # Dim.AUTO, by which a size may vary as far as the network allows it, came with 2.6.
    if not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "AUTO"):
        raise NotExportableError(f"that needs torch 2.6 or later, and this is {torch.__version__}")
    if fresh_rows(network, rows) is rows:
        raise NotExportableError(f"it takes {len(rows)} rows, and not {len(rows) + 1}")
    others = {0: len(rows) + 1, **_other_sizes(network, rows)}
    auto = torch.export.Dim.AUTO
    if dynamic_shapes is not None:
        return _export(network, rows, {0: auto, **dynamic_shapes}, others, path), []
    problem: NotExportableError | None = None
    for vary in _dimensions_to_try(list(others)):
        try:
            shape = _export(network, rows, dict.fromkeys(vary, auto), others, path)
        except NotExportableError as error:
            problem = error
        else:
            return shape, [dimension for dimension in others if shape[dimension] != -1]
    assert problem is not None  # noqa: S101 - something was tried
    raise problem


def _dimensions_to_try(dimensions: list[int]) -> list[list[int]]:
    """Which dimensions may vary: all, all but one, and at last the rows' alone."""
    without_one = [[one for one in dimensions if one != out] for out in dimensions[1:]]
    tried = [dimensions, *without_one, [0]]
    return [one for place, one in enumerate(tried) if one not in tried[:place]]


def resized(rows: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """Other rows of the same kind: the values of ``rows``, moved on and repeated to new sizes."""
    import torch

    for dimension, size in sizes.items():
        places = torch.arange(1, size + 1) % rows.shape[dimension]
        rows = rows.index_select(dimension, places)
    return rows.contiguous()


def fresh_rows(network: Any, rows: torch.Tensor) -> torch.Tensor:
    """One row more than ``rows``; these themselves where the network refuses that."""
    more = resized(rows, {0: len(rows) + 1})
    try:
        answer(network, more)
    except Exception:
        return rows
    return more


def taken_shape(network: Any, rows: torch.Tensor) -> tuple[int, ...]:
    """The shape that the network itself takes, with -1 for each size that may vary."""
    others = _other_sizes(network, rows)
    sizes = [-1 if place in others else size for place, size in enumerate(rows.shape)]
    return (-1, *sizes[1:])


def _other_sizes(network: Any, rows: torch.Tensor) -> dict[int, int]:
    """Other sizes than those of ``rows`` that the network takes, by dimension, after the first."""
    found = {}
    for dimension in range(1, rows.ndim):
        size = rows.shape[dimension]
        # What is exported with a size of 1 or 0 has that size for good.
        for other in (size - 1, size + 1) if size > MIN_EXAMPLE_ROWS else ():
            try:
                answer(network, resized(rows, {0: len(rows) + 1, dimension: other}))
            except Exception:  # noqa: S112 - the network's own way to say that it does not take it
                continue
            found[dimension] = other
            break
    return found


def _export(
    network: Any,
    rows: torch.Tensor,
    dynamic: dict[int, Any],
    others: Mapping[int, int],
    path: Path,
) -> tuple[int, ...]:
    import torch

    try:
        # It shows the graph that it could not finish.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), _no_warnings():
            program = torch.export.export(network, (rows,), dynamic_shapes=(dynamic,))
            torch.export.save(program, path)
            graph = torch.export.load(path).module()
    except Exception as error:  # Tracing runs the network's own code.
        raise NotExportableError(_first_line(error)) from error
    shape = _shape_of_input(program)
    if shape[0] != -1:
        raise NotExportableError(f"its graph takes {shape[0]} rows, no more and no less")
    for dimension, size in others.items():
        if shape[dimension] == -1:
            _require_same(network, graph, resized(rows, {0: others[0], dimension: size}))
    return shape


def _require_same(network: Any, graph: Any, rows: torch.Tensor) -> None:
    import torch

    expected = answer(network, rows)
    try:
        found = answer(graph, rows)
    except Exception as error:
        raise NotExportableError(
            f"its graph refuses rows of shape {list(rows.shape)}: {_first_line(error)}"
        ) from error
    tolerance = {"rtol": _RELATIVE_ERROR, "atol": _ABSOLUTE_ERROR}
    if found.shape != expected.shape or not torch.allclose(
        found, expected, equal_nan=True, **tolerance
    ):
        raise NotExportableError(
            f"its graph answers otherwise than the network to rows of shape {list(rows.shape)}"
        )


def _shape_of_input(program: Any) -> tuple[int, ...]:
    name = program.graph_signature.user_inputs[0]
    node = next(node for node in program.graph.nodes if node.name == name)
    return tuple(size if isinstance(size, int) else -1 for size in node.meta["val"].shape)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Logging goes to the stream that was there when it began, past any redirection."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
