"""``verify_replicas``: whether all ranks still train the same model."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.rank import replicas

# Weights that were never made equal differ from the second step on.
FIRST_STEP = 2
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_models = itertools.count()


class ReplicaCheck:
    """The check of one model, until ``remove`` is called."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        every_steps: int | None,
        ends_run: bool,
    ) -> None:
        self._number = next(_models)
        self._model, self._optimizer = model, optimizer
        self._every_steps, self._ends_run = whole_number("every_steps", every_steps), ends_run
        self._step = self._looks = 0
        self._names: list[str] = []
        self._pending: tuple[int, list[str], list[str], Tensor, Any] | None = None
        self.hook: RemovableHandle | None = None

    def remove(self) -> None:
        """Ends the check."""
        if self.hook is not None:
            self.hook.remove()

    def look(self, step: int) -> None:
        """Tells of a check that is done, and begins one if it is due at this step."""
        if self._every_steps is None or not replicas.is_connected():
            return
        self._tell()
        self._step, self._looks = step, self._looks + 1
        if self._looks == FIRST_STEP or step % self._every_steps == 0:
            try:
                self._begin()
            except Exception as error:  # A kind of tensor whose bits cannot be had.
                if self._ends_run:
                    raise
                self._every_steps = None
                warnings.warn(f"The ranks' parameters are not compared: {error}", stacklevel=2)

    def before_forward(self, model: nn.Module, _inputs: Any) -> None:
        """Looks, if the call is one that trains."""
        if model.training and torch.is_grad_enabled():
            self.look(self._step + 1)

    def _begin(self) -> None:
        """Computes the sums. On a GPU nobody waits for them: they are told at a later step."""
        named = list(_copied(self._model, self._optimizer))
        if not named:
            return
        with torch.no_grad():
            device = named[0][2].device
            sums = torch.stack([_sum_of_bits(tensor).to(device) for _, _, tensor in named])
        event = None
        if sums.is_cuda:
            sums = sums.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        names, copies = [name for name, _, _ in named], [copy for _, copy, _ in named]
        self._pending = self._step, names, copies, sums, event
        if event is None:
            self._tell()

    def _tell(self) -> None:
        if self._pending is None or (self._pending[4] and not self._pending[4].query()):
            return
        (step, names, copies, sums, _), self._pending = self._pending, None
        is_new, self._names = names != self._names, names
        replicas.tell(
            model=self._number,
            step=step,
            sums=sums.tolist(),
            names=names if is_new else None,
            copies=copies if any(copies) else None,
            ends_run=self._ends_run,
        )


def verify_replicas(
    model: nn.Module,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    every_steps: int = 200,
    ends_run: bool = True,
) -> ReplicaCheck:
    """Has the driver compare all ranks' parameters now and then, and name a rank that differs.

    Call it once on every rank, when the weights are equal. A step is a call of the model that
    trains; the parameters are compared before the second, and before each ``every_steps``-th. Ranks
    do not communicate for it, so that one which has never joined the others is seen as well. Of
    what is sharded (``DTensor``) the ranks that have the same shard are compared; FSDP's flat
    parameters are left out. Buffers, such as a batch norm's averages, may differ and are left out.

    Args:
        model: The module, in ``DistributedDataParallel`` or not.
        optimizer: Its state is compared too.
        every_steps: How often. A check reads all parameters once.
        ends_run: Whether a difference ends the run with an error; else it is told once.

    Returns:
        The check. Outside of a rank, or in a single one, it does nothing.

    Raises:
        ValueError: ``every_steps`` is less than 1.
        TypeError: It is no whole number.

    Example:
        >>> verify_replicas(model, every_steps=500)  # doctest: +SKIP
    """
    check = ReplicaCheck(model, optimizer, every_steps, ends_run)
    if replicas.is_connected():
        check.hook = model.register_forward_pre_hook(check.before_forward)
    return check


def _copied(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, str, Tensor]]:
    """Each tensor that ranks have in common: its name, which ranks have it, and the part here."""
    for name, parameter in model.named_parameters():
        if type(parameter).__name__ == "FlatParameter":
            continue
        yield name, *_local(parameter)
        state = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, value in sorted(state.items()):
            if isinstance(value, Tensor):
                yield f"{name} ({key} of the optimizer)", *_local(value)


def _local(tensor: Tensor) -> tuple[str, Tensor]:
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return "", tensor.detach()
    mesh: Any = tensor.device_mesh
    place = zip(mesh.get_coordinate() or (), placements, strict=False)
    holders = mesh.mesh[tuple(slice(None) if one.is_replicate() else at for at, one in place)]
    return f"{placements} of rank {int(holders.min())}", tensor.to_local().detach()


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """A number that changes with any one bit: the sum of the elements' bits as whole numbers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.contiguous().reshape(-1)
    together = 8 // flat.element_size()  # Elements in a whole number of 64 bits: the fastest sum.
    if together > 1 and flat.numel() % together:
        return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
    if flat.storage_offset() % together:
        flat = flat.clone()
    return flat.view(torch.int64).sum()
