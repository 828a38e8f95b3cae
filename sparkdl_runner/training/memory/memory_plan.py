"""``plan_memory``: what a rank needs under each strategy, and which to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.training.description.options import checked_option
from sparkdl_runner.training.memory.device_memory import device_memory
from sparkdl_runner.training.memory.step_profile import LossOfBatch, StepProfile, profile_step
from sparkdl_runner.training.memory.strategies import STRATEGIES, RankMemory

_USABLE = 0.8
"""The usable share of a device: allocators leave gaps, and libraries and loaders need memory."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The bytes that one rank needs under each strategy, and the one to take. Prints as a table."""

    ranks: int
    """The number of ranks."""
    precision: str
    """``"fp32"`` or ``"bf16"``."""
    device_memory_bytes: int
    """The memory of one rank."""
    device: str
    """The device with that memory."""
    by_strategy: Mapping[str, RankMemory]
    """Under ``"ddp"``, ``"zero1"``, ``"fsdp2"``, ``"tensor"`` and ``"pipeline"``."""
    strategy: str | None
    """The first of these that needs at most four fifths of what a rank has, or None."""
    reason: str
    """Why that one, in a sentence; if none fits, what to do."""

    def __str__(self) -> str:
        head = ["", "parameters", "gradients", "optimizer", "activations", "communication", "peak"]
        rows = [head] + [
            [name, *(_short(value) for value in vars(memory).values())]
            for name, memory in self.by_strategy.items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        title = (
            f"One of {self.ranks} ranks, {self.precision}, with "
            f"{_short(self.device_memory_bytes)} ({self.device})"
        )
        return "\n".join([title, *lines, self.reason])


def plan_memory(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any,
    *,
    num_proc: int,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    loss: LossOfBatch | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    device_memory_bytes: int | None = None,
    with_values: bool = False,
) -> MemoryPlan:
    """Says what memory one rank needs under each strategy, what it has, and which to take.

    One step runs in this process on tensors without values, so that it takes no memory and no GPU,
    whatever the size of the model. The rest is arithmetic.

    Args:
        model: A function that makes the model, or a module.
        batch: One rank's batch: a tensor, a tuple of the model's arguments, or a dict of them by
            name. With ``loss``, anything that it takes.
        num_proc: The number of ranks, as ``DistributedRunner`` takes it; negative for this host.
        optimizer: Makes the optimizer of parameters, as ``Trainer`` takes it.
        loss: The loss of a model and a batch, such as ``lambda model, batch:
            mse_loss(model(batch["x"]), batch["y"])``. By default the output's own ``loss``, as
            Transformers' models have it, or the sum of the outputs.
        precision: As ``Trainer`` takes it: ``"bf16"`` is torch's autocast.
        device_memory_bytes: What one rank has. By default this host's GPU; without one, the rank's
            share of this host's or container's memory.
        with_values: Runs the step on real tensors, for a model that decides by what it computes.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is out of range, or the step fails.
    """
    for name, value in (("model", model), ("optimizer", optimizer), ("precision", precision)):
        checked_option(name, value)
    if isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc == 0:
        raise ValueError(
            f"num_proc is {num_proc!r}; expected a number of ranks: positive on Spark, negative "
            "for processes of this host."
        )
    ranks = abs(num_proc)
    memory, place = device_memory(num_proc)
    if device_memory_bytes is not None:
        memory = require_whole("device_memory_bytes", device_memory_bytes, least=1)
        place = "as given"
    step = profile_step(
        model,
        batch,
        optimizer=optimizer,
        loss=loss or _sum_of_outputs,
        precision=precision,
        with_values=with_values,
    )
    needed = {name: needs(step, ranks) for name, needs in STRATEGIES.items()}
    strategy, reason = _choice(step, needed, ranks, memory)
    return MemoryPlan(
        ranks=ranks,
        precision=precision,
        device_memory_bytes=memory,
        device=place,
        by_strategy=needed,
        strategy=strategy,
        reason=reason,
    )


def _sum_of_outputs(model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, (tuple, list)):
        output = model(*batch)
    else:
        output = model(batch)
    if isinstance(given := getattr(output, "loss", None), Tensor):
        return given
    values = [
        leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return torch.stack([value.sum() for value in values]).sum() if values else torch.zeros(())


_MERITS = {
    "ddp": "it is the simplest, and sends least",
    "zero1": "it divides the optimizer's state",
    "fsdp2": "it divides parameters, gradients and the optimizer's state",
    "tensor": "it divides the layers; keep these ranks on one host",
    "pipeline": "it divides the model into parts, and so their activations",
}


def _choice(
    step: StepProfile, needed: Mapping[str, RankMemory], ranks: int, memory: int
) -> tuple[str | None, str]:
    usable = int(_USABLE * memory)
    possible = dict(needed)
    if len(step.saved_bytes) - 1 < ranks:
        del possible["pipeline"]  # There is not a part for each rank.
    for name, rank_memory in possible.items():
        if rank_memory.peak_bytes <= usable:
            return name, (
                f"Take {name}: it needs {_short(rank_memory.peak_bytes)}, and "
                f"{_short(usable)} (4/5 of the memory) may be used; {_MERITS[name]}."
            )
    least = min(possible, key=lambda name: possible[name].peak_bytes)
    rank_memory = possible[least]
    advice = (
        "more ranks"
        if rank_memory.activation_bytes < rank_memory.peak_bytes / 2
        else "a smaller batch"
    )
    return None, (
        f"None fits: {least} needs least, {_short(rank_memory.peak_bytes)}, and {_short(usable)} "
        f"(4/5 of the memory) may be used. Take {advice}, or recompute activations "
        "(torch.utils.checkpoint)."
    )


def _short(size_bytes: int) -> str:
    """Up to three digits and a unit: 1.25 GiB."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size >= 999.5:
            size, unit = size / 1024, larger
    return f"{size:.3g} {unit}"
