"""Communication of a training: one model for all ranks, and sums over all ranks."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict
from torch.optim import Optimizer

from sparkdl_runner.rank import world

Strategy = Literal["ddp", "fsdp2"]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

# The order gives each type a number that all ranks know.
_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
_MOST_DIMENSIONS = 8


class Ranks:
    """All ranks of a training: here, a process that trains alone.

    Each method is to be called by all ranks, in the same order.
    """

    rank = 0
    size = 1
    forwards_together = False
    """Whether a forward pass waits for that of the other ranks."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            # Where each rank is a node of its own, it sees its own GPU only.
            place = int(os.environ["LOCAL_RANK"]) if world.in_worker() else 0
            self.device = torch.device("cuda", place % torch.cuda.device_count())
            torch.cuda.set_device(self.device)

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, accumulate: int
    ) -> tuple[nn.Module, Optimizer]:
        """Makes a model one that all ranks train, from rank 0's weights.

        Args:
            model: On the ranks' device.
            make_optimizer: Makes its optimizer.
            accumulate: How many backward passes there are to a step of the optimizer, at most.

        Returns:
            What is called in place of the model, and the optimizer.
        """
        return model, make_optimizer(model.parameters())

    def without_allreduce(self, network: nn.Module) -> AbstractContextManager[Any]:
        """Keeps passes in its block from averaging gradients over the ranks."""
        return nullcontext()

    def step(self, optimizer: Optimizer, model: nn.Module, clip_norm: float | None) -> None:
        """Takes a step with the mean gradients of all ranks, perhaps of limited norm."""
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in host memory."""
        return values.cpu()

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Every rank's ``[rows, …]``, or number, in the order of ranks.

        Ranks may have different numbers of rows. A rank without any need not know their shape and
        type: it gets those of the others.
        """
        about = torch.zeros(2 + _MOST_DIMENSIONS, dtype=torch.int64)
        about[:2] = torch.tensor([_DTYPES.index(rows.dtype), rows.ndim])
        about[2 : 2 + rows.ndim] = torch.tensor(rows.shape)
        each = [header.tolist() for header in self._gather_alike(about.to(self.device))]
        shapes = [tuple(header[2 : 2 + header[1]]) for header in each]
        filled = [rank for rank, shape in enumerate(shapes) if 0 not in shape]
        if not filled:
            return [rows.new_empty(shape) for shape in shapes]
        if not shapes[filled[0]]:
            return [number.reshape(()) for number in self._gather_alike(rows.reshape(1))]
        counts = [shape[0] if 0 not in shape else 0 for shape in shapes]
        one_row = shapes[filled[0]][1:]
        padded = rows.new_zeros((max(counts), *one_row), dtype=_DTYPES[each[filled[0]][0]])
        if counts[self.rank]:
            padded[: len(rows)] = rows
        gathered = self._gather_alike(padded)
        return [of_rank[:count] for of_rank, count in zip(gathered, counts, strict=True)]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Gives all ranks rank 0's buffers, such as the statistics of batch normalization."""

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """A copy of the model's whole state in host memory; of a sharded one, on rank 0 alone."""
        return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}

    def load_weights(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        """Takes what ``weights`` returned; of a sharded model, rank 0's."""
        model.load_state_dict(weights)

    def _gather_alike(self, values: Tensor) -> list[Tensor]:
        """Every rank's tensor, of one shape and type."""
        return [values]


class TorchRanks(Ranks):
    """Ranks that ``torch.distributed`` connects, by DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, accumulate: int
    ) -> tuple[nn.Module, Optimizer]:
        network = model
        if self.size > 1:
            if any(parameter.requires_grad for parameter in model.parameters()):
                places = [self.device] if self.device.type == "cuda" else None
                network = nn.parallel.DistributedDataParallel(model, device_ids=places)
            else:
                self._broadcast([*model.parameters(), *model.buffers()])
        return network, make_optimizer(model.parameters())

    def without_allreduce(self, network: nn.Module) -> AbstractContextManager[Any]:
        if isinstance(network, nn.parallel.DistributedDataParallel):
            return network.no_sync()  # type: ignore[no-any-return]
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        summed = values.to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.cpu()

    def broadcast_buffers(self, model: nn.Module) -> None:
        self._broadcast(model.buffers())

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if self.size > 1 and tensor.numel():
                whole = tensor.detach().contiguous()
                # As bytes, since gloo and NCCL support different types.
                dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
                if whole.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(whole)

    def _gather_alike(self, values: Tensor) -> list[Tensor]:
        bits = values.to(self.device).contiguous().reshape(-1).view(torch.uint8)
        gathered = [torch.empty_like(bits) for _ in range(self.size)]
        dist.all_gather(gathered, bits)
        return [
            of_rank.view(values.dtype).reshape(values.shape).to(values.device)
            for of_rank in gathered
        ]


class HorovodRanks(Ranks):
    """Ranks that Horovod connects, by its DistributedOptimizer."""

    def __init__(self) -> None:
        super().__init__()
        import horovod.torch as hvd

        if not hvd.is_initialized():
            hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, accumulate: int
    ) -> tuple[nn.Module, Optimizer]:
        optimizer = make_optimizer(model.parameters())
        if self.size == 1:
            return model, optimizer
        self._broadcast(model.named_parameters())
        self.broadcast_buffers(model)
        distributed = self._hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            backward_passes_per_step=accumulate,
        )
        return model, distributed

    def step(self, optimizer: Any, model: nn.Module, clip_norm: float | None) -> None:
        if clip_norm is None or self.size == 1:
            super().step(optimizer, model, clip_norm)
            return
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        with optimizer.skip_synchronize():
            optimizer.step()

    def sum(self, values: Tensor) -> Tensor:
        summed: Tensor = self._hvd.allreduce(values, op=self._hvd.Sum)
        return summed.cpu()

    def broadcast_buffers(self, model: nn.Module) -> None:
        self._broadcast(model.named_buffers())

    def _broadcast(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            if self.size > 1 and tensor.numel():
                flat = tensor.detach().reshape(-1)
                given = self._hvd.broadcast(flat, root_rank=0, name=f"trainer.{name}")
                tensor.detach().copy_(given.reshape(tensor.shape))

    def _gather_alike(self, values: Tensor) -> list[Tensor]:
        return list(self._hvd.allgather(values[None].contiguous()))


def connect(strategy: Strategy) -> Ranks:
    """The ranks that this process is one of; joins those of a run by the run's backend.

    Outside of a run they are those of ``torch.distributed`` or of Horovod, if one was initialized,
    and otherwise this process alone.

    Raises:
        ValueError: The strategy needs another backend.
    """
    horovod = sys.modules.get("horovod.torch")
    backend = world.current_world().backend if world.in_worker() else None
    if backend is None and dist.is_available() and dist.is_initialized():
        backend = "torch"
    elif backend is None and horovod is not None and horovod.is_initialized():
        backend = "horovod"
    if backend == "horovod":
        if strategy == "fsdp2":
            raise ValueError("strategy='fsdp2' needs backend='torch', and this run's is 'horovod'.")
        return HorovodRanks()
    if backend is None:
        return Ranks()
    if strategy == "fsdp2":
        return ShardedRanks()
    return TorchRanks()


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
    parts: list[nn.Module] = []
    for module in model.modules():
        if module is model or isinstance(module, lists):
            parts += [child for child in module.children() if not isinstance(child, lists)]
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    kept = [
        part
        for part in dict.fromkeys(parts)
        if any(True for _ in part.parameters())
        and all(owners[id(parameter)] == 1 for parameter in part.parameters())
    ]
    return kept[::-1]


@contextmanager
def _without_gradient_sync(network: Any) -> Iterator[None]:
    network.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        network.set_requires_gradient_sync(True)
