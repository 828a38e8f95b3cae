"""What the ranks of the digits job run: ordinary Horovod, or DistributedDataParallel, code.

Nothing in this file knows Spark: each rank reads its shard of what was converted, and the functions
are those that would run under horovodrun or torchrun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparkdl_runner import log_to_driver

if TYPE_CHECKING:
    from sparkdl_runner.data import SparkDatasetConverter

SEED = 20
LEARNING_RATE = 3e-3


class DigitsNet(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps [rows, 64] pixels between 0 and 16 to [rows, 10] scores."""
        return self.layers(pixels.view(-1, 1, 8, 8) / 16)


def train_with_horovod(**task: Any) -> dict[str, Any]:
    """Trains with Horovod. For the arguments and the result see ``fit``."""
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(SEED)
    model = DigitsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def sum_over_ranks(values: Tensor) -> Tensor:
        return hvd.allreduce(values, op=hvd.Sum)

    return fit(model, optimizer, sum_over_ranks, rank=hvd.rank(), world_size=hvd.size(), **task)


def train_with_torch(**task: Any) -> dict[str, Any]:
    """Trains with DistributedDataParallel. For the arguments and the result see ``fit``."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def sum_over_ranks(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    rank, world_size = dist.get_rank(), dist.get_world_size()
    result = fit(model, optimizer, sum_over_ranks, rank=rank, world_size=world_size, **task)
    dist.destroy_process_group()
    return result


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sum_over_ranks: Callable[[Tensor], Tensor],
    *,
    rank: int,
    world_size: int,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    epochs: int,
    batch_size: int,
    tracking_uri: str,
    run_id: str,
) -> dict[str, Any]:
    """Trains on this rank's shard and evaluates on all test rows after each epoch.

    Args:
        model: Equal on all ranks.
        optimizer: Averages the gradients over all ranks.
        sum_over_ranks: Sums a tensor over all ranks.
        rank: This rank.
        world_size: How many ranks there are.
        train_data: The rows to learn from.
        test_data: The rows to evaluate on.
        epochs: How often to go through the training rows.
        batch_size: Rows in a step of one rank.
        tracking_uri: MLflow's store.
        run_id: The MLflow run into which rank 0 logs.

    Returns:
        ``accuracy`` on the test rows, ``samples_per_second`` of training over all ranks, and
        ``state_dict``, the trained weights.
    """
    with (
        train_data.make_torch_dataloader(batch_size, num_epochs=1, seed=SEED) as train_loader,
        # Every row counts once, also where the ranks' numbers of rows differ.
        test_data.make_torch_dataloader(
            512, num_epochs=1, shuffle=False, tail="uneven"
        ) as test_loader,
    ):
        # The same on all ranks: none is left waiting for the others in its allreduce.
        steps = len(train_loader)
        samples = steps * batch_size * world_size
        training_seconds = 0.0
        for epoch in range(1, epochs + 1):
            started = time.perf_counter()
            model.train()
            train_loader.set_epoch(epoch)
            loss_sum = torch.zeros(1)
            for batch in train_loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
                loss.backward()
                optimizer.step()
                loss_sum += loss.detach()
            mean_loss = sum_over_ranks(loss_sum).item() / (steps * world_size)
            seconds = time.perf_counter() - started
            training_seconds += seconds
            accuracy = evaluate(model, test_loader, sum_over_ranks)
            metrics = {
                "loss": mean_loss,
                "accuracy": accuracy,
                "samples_per_second": samples / seconds,
            }
            if rank == 0:
                report(epoch, epochs, metrics, tracking_uri, run_id)
    return {
        "accuracy": accuracy,
        "samples_per_second": epochs * samples / training_seconds,
        # DistributedDataParallel keeps the network itself as its module.
        "state_dict": getattr(model, "module", model).state_dict(),
    }


@torch.no_grad()
def evaluate(model: nn.Module, loader: Any, sum_over_ranks: Callable[[Tensor], Tensor]) -> float:
    """The accuracy over all ranks' rows; counts are summed, so it is exact on uneven shards."""
    model.eval()
    correct_and_rows = torch.zeros(2, dtype=torch.float64)
    for batch in loader:
        hits = model(batch["features"]).argmax(dim=1) == batch["label"]
        correct_and_rows += torch.tensor([hits.sum(), len(hits)])
    correct, rows = sum_over_ranks(correct_and_rows).tolist()
    return correct / rows


def report(
    epoch: int, epochs: int, metrics: dict[str, float], tracking_uri: str, run_id: str
) -> None:
    """Tells MLflow, and the person at the driver, how an epoch went."""
    import mlflow

    mlflow.set_tracking_uri(tracking_uri)
    mlflow.log_metrics(metrics, step=epoch, run_id=run_id)
    log_to_driver(
        f"epoch {epoch:2} of {epochs}: loss {metrics['loss']:.4f}, accuracy "
        f"{metrics['accuracy']:.4f}, {metrics['samples_per_second']:,.0f} samples/s"
    )
