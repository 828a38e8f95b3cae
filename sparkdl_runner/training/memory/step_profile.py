"""Runs one step of a training and tells what its tensors take, without their values."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sparkdl_runner.training.loop.module import made
from sparkdl_runner.training.loop.ranks import units
from sparkdl_runner.training.memory.live_bytes import GRADIENT, STATE, LiveBytes, Moment

LossOfBatch = Callable[[nn.Module, Any], Tensor]
_META = torch.device("meta")
_NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter, and what a step keeps for it."""

    size_bytes: int
    gradient_bytes: int
    """0 for one that is not trained."""
    optimizer_bytes: int
    rows: int
    """Its first dimension, by which FSDP2 divides it."""
    part: int
    """The part of the model that it is in; 0 for none."""
    in_matrix: bool
    """Whether it is a weight of a Linear or an Embedding, which tensor parallelism divides."""


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """The memory of one step of one process. Parts are numbered from 1; see ``units``."""

    parameters: Sequence[Parameter]
    buffer_bytes: int
    moments: Sequence[Moment]
    """The moments of the forward and backward pass."""
    saved_bytes: Sequence[int]
    """Bytes that each part saves for the backward pass; the first number is for no part."""
    kept_bytes: int
    """Bytes that are left after the backward pass, such as the batch."""
    update_bytes: int
    """Bytes that the optimizer's step takes temporarily."""


def profile_step(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any,
    *,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    loss: LossOfBatch,
    precision: str,
    with_values: bool,
) -> StepProfile:
    """Runs a step on tensors without values, or with values, on a copy of the model.

    Raises:
        TypeError: The model or the optimizer is none.
        ValueError: The step fails.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    mode: AbstractContextManager[Any] = nullcontext() if with_values else fake
    live = LiveBytes()
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        if not isinstance(model, nn.Module):
            with (
                _explained_errors("Making the model", with_values),
                place if with_values else _META,
            ):
                model = model()
        given = made(lambda: model)
    with torch.random.fork_rng(), mode, place:
        network = (copy.deepcopy(given) if with_values else _without_values(given, fake)).train()
        device = next((parameter.device for parameter in network.parameters()), None)
        if device is None:
            raise ValueError("The model has no parameters; expected one that can be trained.")
        for tensor in [*network.parameters(), *network.buffers()]:
            live.add(tensor, STATE)
        parts = units(network)[::-1]
        _follow(network, parts, live)
        with live:
            own_batch = tree_map(lambda leaf: _copy(leaf, device), batch)
            with (
                _explained_errors("The forward pass on this batch", with_values),
                torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
            ):
                value = loss(network, own_batch)
            if not isinstance(value, Tensor) or not value.requires_grad:
                raise ValueError(
                    "The loss has no gradient. Give loss=, a function of the model and the batch "
                    "that returns one: lambda model, batch: mse_loss(model(batch[0]), batch[1])."
                )
            saved = live.work_bytes_by_part()
            live.part, live.in_backward = 0, True  # The loss comes first.
            with _explained_errors("The backward pass", with_values):
                value.sum().backward()
            moments, live.moments = live.moments, []
            kept = sum(live.work_bytes_by_part().values())
            chosen = optimizer(network.parameters())
            if not isinstance(chosen, torch.optim.Optimizer):
                raise TypeError(
                    f"optimizer(…) returned {type(chosen).__name__}; "
                    "expected a torch.optim.Optimizer."
                )
            with _explained_errors("The optimizer's step", with_values), _AnyNumber():
                chosen.step()
        parameters = _parameters(network, parts, chosen)
        state = sum(parameter.optimizer_bytes for parameter in parameters)
        update = max((moment.work_bytes for moment in live.moments), default=0)
        return StepProfile(
            parameters=parameters,
            buffer_bytes=sum(_bytes(buffer) for buffer in network.buffers()),
            moments=moments,
            saved_bytes=[saved.get(part, 0) for part in range(len(parts) + 1)],
            kept_bytes=kept,
            update_bytes=max(0, update - state - kept),
        )


class _AnyNumber(TorchDispatchMode):
    """A number that the optimizer reads, such as its count of steps, is 0.5 if it has no value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0.5 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def _without_values(network: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """A copy whose tensors have no values; what was made on the meta device is on the usual one."""
    copies: dict[int, Any] = {}
    for tensor in [*network.parameters(), *network.buffers()]:
        place = torch.get_default_device() if tensor.is_meta else tensor.device
        new = torch.empty(tensor.shape, dtype=tensor.dtype, device=place)
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
    with FakeCopyMode(fake):
        return copy.deepcopy(network, copies)


@contextmanager
def _explained_errors(what: str, with_values: bool) -> Iterator[None]:
    """Turns what fails into a sentence with the way out."""
    log = logging.getLogger("torch._subclasses.fake_tensor")  # It would tell of that as well.
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except _SparseGradientError:
        raise
    except Exception as error:
        text = f"{what} failed: {type(error).__name__}: {error}".rstrip(".")
        if isinstance(error, _NEEDS_VALUES):
            text = f"{what} reads values, and it was run without any ({error})"
        if not with_values:
            text += (
                ". If it does well elsewhere, give with_values=True: then the step runs on real "
                "tensors, in this process's memory"
            )
        raise ValueError(f"{text}.") from error
    finally:
        log.disabled = was_disabled


def _copy(value: Any, device: torch.device) -> Any:
    return value.to(device, copy=True) if isinstance(value, Tensor) else value


def _follow(network: nn.Module, parts: Sequence[nn.Module], live: LiveBytes) -> None:
    """Has ``live`` know which part works, in both passes, and what is a gradient."""
    inside: list[int] = []
    for number, part in enumerate(parts, start=1):
        _follow_part(part, number, inside, live)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(_add_gradient, live, name))


class _SparseGradientError(ValueError):
    """A gradient's size depends on the batch's values."""


def _add_gradient(live: LiveBytes, name: str, parameter: Any) -> None:
    gradient = parameter.grad
    if gradient.layout is not torch.strided:
        raise _SparseGradientError(
            f"The gradient of {name!r} is sparse: how large it is depends on the values of a "
            "batch. Make its layer with sparse=False for the plan; a training whose batches have "
            "few of its rows then needs less than planned."
        )
    live.add(gradient, GRADIENT)


def _follow_part(part: nn.Module, number: int, inside: list[int], live: LiveBytes) -> None:
    def begin(*_: Any) -> None:
        inside.append(number)
        live.part = number

    def works_backward(_: Tensor) -> None:
        live.part = number

    def end(_module: Any, _inputs: Any, output: Any) -> None:
        inside.pop()
        # Operations after it, such as an activation function or the loss, count as the part's.
        live.part = inside[-1] if inside else number
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(works_backward)

    part.register_forward_pre_hook(begin)
    part.register_forward_hook(end)


def _parameters(
    network: nn.Module, parts: Sequence[nn.Module], optimizer: torch.optim.Optimizer
) -> list[Parameter]:
    numbers: dict[int, int] = {}
    for number, part in reversed(list(enumerate(parts, start=1))):  # Inner parts come last.
        for parameter in part.parameters():
            numbers.setdefault(id(parameter), number)
    matrices = {
        id(module.weight)
        for module in network.modules()
        if isinstance(module, (nn.Linear, nn.Embedding))
    }
    return [
        Parameter(
            size_bytes=_bytes(parameter),
            gradient_bytes=_bytes(parameter) if parameter.requires_grad else 0,
            optimizer_bytes=sum(
                _bytes(value)
                for value in tree_leaves(dict(optimizer.state.get(parameter, {})))
                if isinstance(value, Tensor)
            ),
            rows=len(parameter) if parameter.dim() else 1,
            part=numbers.get(id(parameter), 0),
            in_matrix=id(parameter) in matrices,
        )
        for parameter in network.parameters()
    ]


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
