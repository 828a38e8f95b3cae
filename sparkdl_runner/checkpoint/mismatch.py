"""Whether a checkpoint is of the model and the optimizer that are to take it, and if not, why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sparkdl_runner.checkpoint.directory.manifest import Manifest
from sparkdl_runner.checkpoint.sharded import own_optimizer

_SHOWN = 10


def parameters_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each tensor of a state, by name, as JSON."""
    import torch

    return {
        name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def class_of(optimizer: Any) -> str | None:
    """The name of an optimizer's class, or of that inside of a ``ZeroRedundancyOptimizer``."""
    return None if optimizer is None else type(own_optimizer(optimizer)).__name__


def model_problem(
    manifest: Manifest, state: Mapping[str, Any], unknown: Collection[str] | None = None
) -> str | None:
    """Says why a checkpoint cannot be loaded into a model with this state; None if it can.

    Args:
        manifest: The checkpoint's.
        state: Of this rank's model.
        unknown: Names in the checkpoint that no rank has; by default those not in ``state``.
    """
    saved, here = manifest.parameters, parameters_of(state)
    if not saved and here:
        return "it holds no model, and one is to be restored. Leave model out."
    if unknown is not None:
        saved = {
            name: parameter for name, parameter in saved.items() if name in here or name in unknown
        }
    shapes = [
        f"{name} ({saved[name]['shape']} in the checkpoint, {here[name]['shape']} here)"
        for name in sorted(saved.keys() & here.keys())
        if saved[name]["shape"] != here[name]["shape"]
    ]
    differences = _differences(saved, here) + _some("of another shape", shapes)
    if not differences:
        return None
    return (
        f"it is of another model: {'; '.join(differences)}. Build the model as it was when the "
        "checkpoint was saved, or give another directory."
    )


def optimizer_problem(manifest: Manifest, optimizer: Any) -> str | None:
    """Says how a checkpoint's optimizer is of another kind; None if it is of the same."""
    here = class_of(optimizer)
    if manifest.optimizer_class is None:
        return "it holds no state of an optimizer, and one is to be restored. Leave optimizer out."
    if manifest.optimizer_class not in ("", here, type(optimizer).__name__):
        return (
            f"its optimizer is {manifest.optimizer_class}, and {here} is to be restored. Build "
            "the optimizer as it was, or leave it out to begin with a new one."
        )
    return None


def groups_problem(
    saved: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]
) -> str | None:
    """Why an optimizer's parameter groups cannot take those of another of its kind."""
    sizes, expected = ([len(group["params"]) for group in groups] for groups in (saved, here))
    if sizes == expected:
        return None
    return (
        f"its optimizer has {len(sizes)} parameter groups of {_counts(sizes)} parameters, and "
        f"the one to be restored has {len(expected)} of {_counts(expected)}. Build the optimizer "
        "as it was when the checkpoint was saved."
    )


def names_problem(saved: Iterable[str], here: Iterable[str]) -> str | None:
    """Why the state of a sharded optimizer cannot be loaded into this rank's."""
    differences = _differences(saved, here)
    return f"its optimizer has another state: {'; '.join(differences)}." if differences else None


def _differences(saved: Iterable[str], here: Iterable[str]) -> list[str]:
    saved, here = set(saved), set(here)
    missing = _some("missing in the checkpoint", sorted(here - saved))
    return missing + _some("unexpected in the checkpoint", sorted(saved - here))


def _some(what: str, names: list[str]) -> list[str]:
    """How many there are, and the first of them; nothing if there are none."""
    rest = f", … and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{rest}"] if names else []


def _counts(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:_SHOWN])) + (", …" if len(sizes) > _SHOWN else "")
