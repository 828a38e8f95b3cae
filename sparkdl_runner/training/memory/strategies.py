"""The memory of one of N ranks under each strategy, from a step's in one process.

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
    """The bytes of the rank that needs most."""

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


def ddp(step: StepProfile, ranks: int) -> RankMemory:
    """Every rank has everything, and the gradients once more in buckets."""
    optimizer_bytes = sum(parameter.optimizer_bytes for parameter in step.parameters)
    return _replicated(step, optimizer_bytes, step.update_bytes)


def zero1(step: StepProfile, ranks: int) -> RankMemory:
    """DDP, and each parameter's optimizer state on one rank alone."""
    loads = [(0, 0)] * ranks
    # ZeroRedundancyOptimizer gives the largest first, each to the rank that has least.
    for parameter in sorted(
        step.parameters, key=lambda candidate: candidate.size_bytes, reverse=True
    ):
        least = loads.index(min(loads))
        loads[least] = (
            loads[least][0] + parameter.size_bytes,
            loads[least][1] + parameter.optimizer_bytes,
        )
    share = max(size for size, _ in loads) / max(1, _parameters(step))
    return _replicated(step, max(optimizer for _, optimizer in loads), _update(step, share))


def fsdp2(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has 1/N of every parameter, rounded up to whole rows."""
    sizes = [0] * (len(step.saved_bytes) + 1)
    for parameter in step.parameters:
        sizes[parameter.part] += parameter.size_bytes
    rest, sizes[0] = sizes[0], 0

    def sent(moment: Moment) -> int:
        part = moment.part
        own, following = sizes[part], sizes[part + 1]
        if not moment.in_backward:
            # What is in no part stays; of the part there are the gathered bytes and parameters.
            return rest + 2 * own
        next_one = sizes[max(0, part - 1)]
        # Parameters, those of the part that is next, gradients, and what is being reduced.
        return 2 * rest + 2 * own + next_one + max(own, following)

    return _divided(
        step, lambda parameter: ceil(parameter.rows / ranks) / max(1, parameter.rows), sent
    )


def tensor(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has 1/N of the weights of Linear and Embedding layers.

    Activations are counted whole, which is the most: those within a divided pair are divided too.
    """
    return _divided(
        step, lambda parameter: 1 / ranks if parameter.in_matrix else 1, lambda moment: 0
    )


def pipeline(step: StepProfile, ranks: int) -> RankMemory:
    """Each rank has neighboring parts of the model, by GPipe with N microbatches.

    The parts are divided so that the highest peak of a rank is as low as can be. A rank keeps what
    the forward pass saves of all microbatches; what a backward pass needs beside it is that of one.
    """
    passing = max(0, _work(step) - sum(step.saved_bytes)) // ranks

    def needs(stage: _Piece) -> RankMemory:
        activations = stage.saved_bytes + passing
        parameters = stage.parameter_bytes + step.buffer_bytes
        update = _update(step, stage.parameter_bytes / max(1, _parameters(step)))
        return RankMemory(
            parameter_bytes=parameters,
            gradient_bytes=stage.gradient_bytes,
            optimizer_bytes=stage.optimizer_bytes,
            activation_bytes=activations,
            communication_bytes=0,
            peak_bytes=parameters
            + stage.optimizer_bytes
            + stage.gradient_bytes
            + max(activations, step.kept_bytes + update),
        )

    pieces = [_piece(step, part) for part in range(len(step.saved_bytes))]
    return needs(_largest_stage(pieces, ranks, lambda stage: needs(stage).peak_bytes))


@dataclass(frozen=True, kw_only=True)
class _States:
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Piece(_States):
    saved_bytes: int

    def __add__(self, other: _Piece) -> _Piece:
        return _Piece(**{name: value + vars(other)[name] for name, value in vars(self).items()})


def _piece(step: StepProfile, part: int) -> _Piece:
    own = [parameter for parameter in step.parameters if parameter.part == part]
    return _Piece(
        parameter_bytes=sum(parameter.size_bytes for parameter in own),
        gradient_bytes=sum(parameter.gradient_bytes for parameter in own),
        optimizer_bytes=sum(parameter.optimizer_bytes for parameter in own),
        saved_bytes=step.saved_bytes[part],
    )


def _largest_stage(
    pieces: Sequence[_Piece], ranks: int, peak_bytes: Callable[[_Piece], int]
) -> _Piece:
    """The largest of so many runs of neighbors, divided so that it is as small as can be.

    Args:
        pieces: The parts of the model.
        ranks: The most runs.
        peak_bytes: What a rank with such a run needs; never less for a longer run.
    """
    low = max(map(peak_bytes, pieces))
    high = peak_bytes(sum(pieces[1:], pieces[0]))
    while low < high:
        middle = (low + high) // 2
        if len(_stages(pieces, middle, peak_bytes)) <= ranks:
            high = middle
        else:
            low = middle + 1
    return max(_stages(pieces, low, peak_bytes), key=peak_bytes)


def _stages(
    pieces: Sequence[_Piece], most_bytes: int, peak_bytes: Callable[[_Piece], int]
) -> list[_Piece]:
    stages = [pieces[0]]
    for piece in pieces[1:]:
        joined = stages[-1] + piece
        if peak_bytes(joined) <= most_bytes:
            stages[-1] = joined
        else:
            stages.append(piece)
    return stages


def _parameters(step: StepProfile) -> int:
    return sum(parameter.size_bytes for parameter in step.parameters)


def _gradients(step: StepProfile) -> int:
    return sum(parameter.gradient_bytes for parameter in step.parameters)


def _work(step: StepProfile) -> int:
    return max((moment.work_bytes for moment in step.moments), default=0)


def _update(step: StepProfile, share: float) -> int:
    """The temporary bytes of an optimizer that updates this share of the parameters.

    Some update all at once, others one by one, which takes up to two of the largest.
    """
    largest = max((parameter.size_bytes for parameter in step.parameters), default=0)
    return max(int(share * step.update_bytes), min(step.update_bytes, 2 * largest))


def _replicated(step: StepProfile, optimizer_bytes: int, update_bytes: int) -> RankMemory:
    gradients = _gradients(step)
    state = _States(
        parameter_bytes=_parameters(step) + step.buffer_bytes,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer_bytes,
    )
    passes = max((moment.work_bytes + moment.gradient_bytes for moment in step.moments), default=0)
    update = gradients + step.kept_bytes + update_bytes
    return _memory(step, state, gradients, gradients + max(passes, update))


def _divided(
    step: StepProfile, share: Callable[[Parameter], float], sent: Callable[[Moment], int]
) -> RankMemory:
    state = _States(
        parameter_bytes=ceil(
            sum(share(parameter) * parameter.size_bytes for parameter in step.parameters)
        )
        + step.buffer_bytes,
        gradient_bytes=ceil(
            sum(share(parameter) * parameter.gradient_bytes for parameter in step.parameters)
        ),
        optimizer_bytes=ceil(
            sum(share(parameter) * parameter.optimizer_bytes for parameter in step.parameters)
        ),
    )
    gradients = state.gradient_bytes / max(1, _gradients(step))
    passes = max(
        (
            moment.work_bytes + int(gradients * moment.gradient_bytes) + sent(moment)
            for moment in step.moments
        ),
        default=0,
    )
    parameters = (state.parameter_bytes - step.buffer_bytes) / max(1, _parameters(step))
    update = state.gradient_bytes + step.kept_bytes + int(parameters * step.update_bytes)
    return _memory(step, state, max(map(sent, step.moments), default=0), max(passes, update))


def _memory(
    step: StepProfile, state: _States, communication_bytes: int, most_bytes: int
) -> RankMemory:
    return RankMemory(
        parameter_bytes=state.parameter_bytes,
        gradient_bytes=state.gradient_bytes,
        optimizer_bytes=state.optimizer_bytes,
        activation_bytes=_work(step),
        communication_bytes=communication_bytes,
        peak_bytes=state.parameter_bytes + state.optimizer_bytes + most_bytes,
    )


STRATEGIES: dict[str, Callable[[StepProfile, int], RankMemory]] = {
    "ddp": ddp,
    "zero1": zero1,
    "fsdp2": fsdp2,
    "tensor": tensor,
    "pipeline": pipeline,
}
"""In the order in which they are to be preferred."""
