"""Ranks of which each holds a part of the parameters, by FSDP2's ``fully_shard``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict
from torch.optim import Optimizer

from sparkdl_runner.training.loop.ranks import MakeOptimizer, TorchRanks


class ShardedRanks(TorchRanks):
    """Each rank holds about 1/N of parameters, gradients and the optimizer's state."""

    forwards_together = True

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, accumulate: int
    ) -> tuple[nn.Module, Optimizer]:
        from torch.distributed.fsdp import fully_shard  # Since torch 2.6; ``units`` needs no such.

        self._broadcast([*model.parameters(), *model.buffers()])
        for unit in units(model):
            fully_shard(unit)
        fully_shard(model)
        return model, make_optimizer(model.parameters())

    def without_allreduce(self, network: nn.Module) -> AbstractContextManager[Any]:
        return _without_gradient_sync(network)

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole = state_dict.get_model_state_dict(model, options=options)
        return {name: value.clone() for name, value in whole.items()}

    def load_weights(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state_dict.set_model_state_dict(model, weights, options=options)


def units(model: nn.Module) -> list[nn.Module]:
    """The parts of a model whose parameters are gathered together, inner ones first.

    They are its children, and all that is in a ``ModuleList`` or ``ModuleDict``, such as the blocks
    of a transformer. Parts that share parameters with others are left to the whole.
    """
    lists = nn.ModuleList | nn.ModuleDict
    found: list[nn.Module] = []
    for module in model.modules():
        if module is model or isinstance(module, lists):
            found += [one for one in module.children() if not isinstance(one, lists)]
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    kept = [
        one
        for one in dict.fromkeys(found)
        if any(True for _ in one.parameters())
        and all(owners[id(parameter)] == 1 for parameter in one.parameters())
    ]
    return kept[::-1]


@contextmanager
def _without_gradient_sync(network: Any) -> Iterator[None]:
    network.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        network.set_requires_gradient_sync(True)
