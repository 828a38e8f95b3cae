"""What one of N ranks needs under each strategy, from what a step takes in one process.

The states are divided as in ZeRO (Rajbhandari et al., 2020, figure 1). What the ranks send comes
from how torch does it: DDP keeps a copy of the gradients in its buckets; FSDP2 gathers a part of
the model at a time, and the next one beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from sparkdl_runner.training.memory.live_bytes import Moment
from sparkdl_runner.training.memory.step_profile import Parameter, StepProfile


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """What the rank that needs most needs, in bytes."""

    parameter_bytes: int
    """Parameters and buffers."""
    gradient_bytes: int
    """Gradients, between backward pass and step."""
    optimizer_bytes: int
    """The optimizer's state."""
    activation_bytes: int
    """The batch, and all that the forward and backward pass make for a while."""
    communication_bytes: int
    """Buckets of gradients, and gathered parameters."""
    peak_bytes: int
    """The most at one time. Less than the sum, since gradients come while activations go."""


Share = Callable[[Parameter], float]


def ddp(step: StepProfile, ranks: int) -> RankMemory:
    """Every rank has everything, and the gradients once more in buckets."""
    return _replicated(step, sum(one.optimizer_bytes for one in step.parameters))


def zero1(step: StepProfile, ranks: int) -> RankMemory:
    """DDP, and each parameter's optimizer state on one rank alone."""
    loads = [(0, 0)] * ranks
    # ZeroRedundancyOptimizer gives the largest first, each to the rank that has least.
    for one in sorted(step.parameters, key=lambda one: one.size_bytes, reverse=True):
        least = loads.index(min(loads))
        loads[least] = (loads[least][0] + one.size_bytes, loads[least][1] + one.optimizer_bytes)
    return _replicated(step, max(optimizer for _, optimizer in loads))


def fsdp2(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has 1/N of every parameter, rounded up to whole rows."""

    def share(one: Parameter) -> float:
        return ceil(one.rows / ranks) / max(1, one.rows)

    sizes = [0] * len(step.saved_bytes)
    for one in step.parameters:
        sizes[one.part] += one.size_bytes
    rest, parts = sizes[0], sizes
    last = len(parts) - 1

    def gathered(moment: Moment) -> int:
        part = moment.part
        own = parts[part] if part else 0
        if not moment.in_backward:
            # What is in no part stays; the others have the gathered bytes, and the parameters.
            return rest + 2 * own
        before = parts[part - 1] if part > 1 else 0
        after = parts[part + 1] if 0 < part < last else 0
        # Parameters, those of the next part, gradients, and what is being reduced.
        return 2 * rest + 2 * own + before + max(own, after)

    state = _states(step, share)
    communication = max((gathered(one) for one in step.moments), default=0)
    gradient_share = state.gradient_bytes / max(1, _gradients(step))
    passes = max(
        (
            one.work_bytes + int(gradient_share * one.gradient_bytes) + gathered(one)
            for one in step.moments
        ),
        default=0,
    )
    return _memory(step, state, communication, passes, state.gradient_bytes)


def tensor(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has 1/N of the weights of Linear and Embedding layers.

    Activations are counted whole, which is the most: those within a divided pair are divided too.
    """

    def share(one: Parameter) -> float:
        return 1 / ranks if one.in_matrix else 1

    state = _states(step, share)
    gradient_share = state.gradient_bytes / max(1, _gradients(step))
    passes = max(
        (one.work_bytes + int(gradient_share * one.gradient_bytes) for one in step.moments),
        default=0,
    )
    return _memory(step, state, 0, passes, state.gradient_bytes)


def pipeline(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has neighboring parts of the model, by GPipe with N microbatches.

    The parts are divided so that the rank with most has least. It keeps what the forward pass saves
    of all microbatches; what a backward pass needs beside it is that of one.
    """
    pieces = [
        _Piece(
            parameter_bytes=sum(one.size_bytes for one in own),
            gradient_bytes=sum(one.gradient_bytes for one in own),
            optimizer_bytes=sum(one.optimizer_bytes for one in own),
            saved_bytes=step.saved_bytes[part],
        )
        for part in range(len(step.saved_bytes))
        for own in [[one for one in step.parameters if one.part == part]]
    ]
    stage = _largest_stage(pieces, ranks)
    most = max((one.work_bytes for one in step.moments), default=0)
    activations = stage.saved_bytes + max(0, most - sum(step.saved_bytes)) // ranks
    parameters = stage.parameter_bytes + step.buffer_bytes
    working = stage.gradient_bytes + max(activations, step.update_bytes)
    return RankMemory(
        parameter_bytes=parameters,
        gradient_bytes=stage.gradient_bytes,
        optimizer_bytes=stage.optimizer_bytes,
        activation_bytes=activations,
        communication_bytes=0,
        peak_bytes=parameters + stage.optimizer_bytes + working,
    )


@dataclass(frozen=True, kw_only=True)
class _States:
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Piece(_States):
    saved_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.saved_bytes

    def __add__(self, other: _Piece) -> _Piece:
        return _Piece(**{name: value + vars(other)[name] for name, value in vars(self).items()})


def _largest_stage(pieces: Sequence[_Piece], ranks: int) -> _Piece:
    """The largest of so many runs of neighbors, divided so that it is as small as can be."""
    low, high = max(one.total_bytes for one in pieces), sum(one.total_bytes for one in pieces)
    while low < high:
        middle = (low + high) // 2
        if len(_stages(pieces, middle)) <= ranks:
            high = middle
        else:
            low = middle + 1
    return max(_stages(pieces, low), key=lambda one: one.total_bytes)


def _stages(pieces: Sequence[_Piece], most_bytes: int) -> list[_Piece]:
    stages = [pieces[0]]
    for piece in pieces[1:]:
        joined = stages[-1] + piece
        if joined.total_bytes <= most_bytes:
            stages[-1] = joined
        else:
            stages.append(piece)
    return stages


def _states(step: StepProfile, share: Share) -> _States:
    return _States(
        parameter_bytes=ceil(sum(share(one) * one.size_bytes for one in step.parameters))
        + step.buffer_bytes,
        gradient_bytes=ceil(sum(share(one) * one.gradient_bytes for one in step.parameters)),
        optimizer_bytes=ceil(sum(share(one) * one.optimizer_bytes for one in step.parameters)),
    )


def _gradients(step: StepProfile) -> int:
    return sum(one.gradient_bytes for one in step.parameters)


def _replicated(step: StepProfile, optimizer_bytes: int) -> RankMemory:
    gradients = _gradients(step)
    state = _States(
        parameter_bytes=sum(one.size_bytes for one in step.parameters) + step.buffer_bytes,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer_bytes,
    )
    passes = max((one.work_bytes + one.gradient_bytes for one in step.moments), default=0)
    return _memory(step, state, gradients, passes + gradients, 2 * gradients)


def _memory(
    step: StepProfile,
    state: _States,
    communication_bytes: int,
    passes_bytes: int,
    gradients_bytes: int,
) -> RankMemory:
    """The peak is that of the passes, or of the optimizer's step, when all gradients are there."""
    # Most optimizers update one parameter at a time, so that a rank with fewer needs no less.
    update = gradients_bytes + step.update_bytes
    return RankMemory(
        parameter_bytes=state.parameter_bytes,
        gradient_bytes=state.gradient_bytes,
        optimizer_bytes=state.optimizer_bytes,
        activation_bytes=max((one.work_bytes for one in step.moments), default=0),
        communication_bytes=communication_bytes,
        peak_bytes=state.parameter_bytes + state.optimizer_bytes + max(passes_bytes, update),
    )


STRATEGIES: dict[str, Callable[[StepProfile, int], RankMemory]] = {
    "ddp": ddp,
    "zero1": zero1,
    "fsdp2": fsdp2,
    "tensor": tensor,
    "pipeline": pipeline,
}
"""In the order in which they are to be preferred."""
