"""A network as a graph that ``torch.export`` makes, checked against the network's own answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner.tensors.torch_export import NotExportableError, first_line, quiet_export
from sparkdl_runner.tracking.models.example import MIN_ROWS, Example, Place

if TYPE_CHECKING:
    import torch

# The graph's kernels compute in another order than the network's.
RELATIVE_ERROR, ABSOLUTE_ERROR = 1e-3, 1e-4

Shapes = dict[str, tuple[int, ...]]
"""For each argument of the network its shape ``[rows, …]``, with -1 for sizes that may vary."""
OtherSizes = dict[tuple[Place, ...], int]
"""A size unlike that of the example which the network takes as well, by the places that have it:
one, or several that must agree."""


def other_sizes(network: Any, example: Example) -> OtherSizes:
    """Finds out which sizes may vary, by asking the network."""
    more_rows = dict.fromkeys(example.rows, example.num_rows + 1)
    sizes: OtherSizes = {}
    if _takes(network, example.resized(more_rows)):
        sizes[example.rows] = example.num_rows + 1
    for places, size in _groups(example):
        if any(set(places) & set(known) for known in sizes):
            continue
        for other in (size - 1, size + 1):
            if _takes(network, example.resized({**more_rows, **dict.fromkeys(places, other)})):
                sizes[places] = other
                break
    return sizes


def _groups(example: Example) -> Iterator[tuple[tuple[Place, ...], int]]:
    """Each size by itself, then those that are the same in several arguments."""
    # torch exports a size of 1 or 0 as a constant. Of 2, one less is such a size.
    sizes = {
        (name, dimension): size
        for name, tensor in example.tensors.items()
        for dimension, size in enumerate(tensor.shape)
        if dimension and size > MIN_ROWS
    }
    for place, size in sizes.items():
        yield (place,), size
    for size in dict.fromkeys(sizes.values()):
        together = tuple(place for place, own_size in sizes.items() if own_size == size)
        if len(together) > 1:
            yield together, size


def _takes(network: Any, example: Example) -> bool:
    try:
        example.answer(network)
    except Exception:  # The network's own code refuses this size.
        return False
    return True


def export(
    network: torch.nn.Module,
    example: Example,
    others: OtherSizes,
    dynamic_shapes: Mapping[Any, Any] | None,
    path: Path,
) -> Shapes:
    """Exports a network for any number of rows, writes it, and checks what was written.

    Args:
        network: On the CPU, in evaluation mode.
        example: What it takes, at least ``MIN_ROWS`` rows.
        others: Other sizes that it takes, as ``other_sizes`` finds them.
        dynamic_shapes: Which sizes may vary, as ``torch.export`` takes it: by dimension of the one
            tensor, or by argument and dimension; by default all of ``others`` if torch can export
            that, else as many as it can.
        path: The file to write.

    Raises:
        NotExportableError: It cannot be exported, or does not answer as the network does.
    """
    import torch

    # Dim.AUTO lets a size vary as far as the network allows it.
    if not hasattr(torch.export, "Dim") or not hasattr(torch.export.Dim, "AUTO"):
        raise NotExportableError(f"that needs torch 2.6 or later, and this is {torch.__version__}")
    if example.rows not in others:
        rows = example.num_rows
        raise NotExportableError(f"it takes {rows} rows, and not {rows + 1}")
    auto = torch.export.Dim.AUTO
    if dynamic_shapes is not None:
        given = {"": dynamic_shapes} if example.is_one_tensor else dynamic_shapes
        tried = [{name: {0: auto, **given.get(name, {})} for name in example.tensors}]
    else:
        # All may vary; then all but one; then the number of rows alone.
        kept = [list(others)]
        kept += [[group for group in others if group != out] for out in list(others)[1:]]
        kept += [[example.rows]] if len(others) > 2 else []
        tried = [
            {
                name: {place[1]: auto for group in groups for place in group if place[0] == name}
                for name in example.tensors
            }
            for groups in kept
        ]
    problem: NotExportableError | None = None
    for dynamic in tried:
        try:
            return _export(network, example, dynamic, others, path)
        except NotExportableError as error:
            problem = error
    assert problem is not None  # noqa: S101 - something was tried
    raise problem


def _export(
    network: Any,
    example: Example,
    dynamic: dict[str, dict[int, Any]],
    others: OtherSizes,
    path: Path,
) -> Shapes:
    import torch

    tensors = example.tensors
    if example.by_name:
        how: dict[str, Any] = {"args": (), "kwargs": dict(tensors), "dynamic_shapes": dynamic}
    else:
        how = {"args": tuple(tensors.values()), "dynamic_shapes": tuple(dynamic.values())}
    try:
        with quiet_export():
            program = torch.export.export(network, **how)
            torch.export.save(program, path)
            graph = torch.export.load(path).module()
    except Exception as error:  # Tracing runs the network's own code.
        raise NotExportableError(first_line(error)) from error
    shapes = _shapes_of_inputs(program, example)
    for name, shape in shapes.items():
        if shape[0] != -1:
            of = f" of {name}" if name else ""
            raise NotExportableError(f"its graph takes {shape[0]} rows{of}, no more and no less")
    more_rows = dict.fromkeys(example.rows, others[example.rows])
    for places, size in others.items():
        if all(shapes[name][dimension] == -1 for name, dimension in places):
            _require_same(
                network, graph, example.resized({**more_rows, **dict.fromkeys(places, size)})
            )
    return shapes


def are_same(outputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether two answers differ by no more than the order in which they were computed."""
    return outputs.keys() == expected.keys() and all(
        outputs[name].shape == tensor.shape
        and outputs[name].allclose(tensor, RELATIVE_ERROR, ABSOLUTE_ERROR, equal_nan=True)
        for name, tensor in expected.items()
    )


def _require_same(network: Any, graph: Any, example: Example) -> None:
    expected = example.answer(network)
    shapes = [list(tensor.shape) for tensor in example.tensors.values()]
    rows = f"rows of shape {shapes[0] if len(shapes) == 1 else shapes}"
    try:
        answer = example.answer(graph)
    except Exception as error:
        raise NotExportableError(f"its graph refuses {rows}: {first_line(error)}") from error
    if not are_same(answer, expected):
        raise NotExportableError(f"its graph answers otherwise than the network to {rows}")


def _shapes_of_inputs(program: Any, example: Example) -> Shapes:
    nodes = {node.name: node for node in program.graph.nodes}
    known = list(program.graph_signature.user_inputs)
    # Torch puts arguments that are given by name into the order of the network's own.
    names = example.tensors if example.by_name else known
    return {
        argument: tuple(
            size if isinstance(size, int) else -1 for size in nodes[name].meta["val"].shape
        )
        for argument, name in zip(example.tensors, names, strict=True)
    }
