"""The network for handwritten digits, its training and its evaluation on one rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparkdl_runner import current_world, log_to_driver
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.tracking import log_metrics, log_model

if TYPE_CHECKING:
    from sparkdl_runner.data import SparkDatasetConverter

CHECKPOINT_STEPS = 50
Prepared = tuple[nn.Module, torch.optim.Optimizer, Callable[[Tensor], Tensor]]
"""A model that is equal on all ranks, its optimizer, which averages their gradients, and a sum."""


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


@contextmanager
def on_horovod(model: nn.Module, learning_rate: float) -> Iterator[Prepared]:
    """Makes a model one that all ranks train, with Horovod."""
    import horovod.torch as hvd

    hvd.init()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    yield model, optimizer, partial(hvd.allreduce, op=hvd.Sum)


@contextmanager
def on_torch(model: nn.Module, learning_rate: float) -> Iterator[Prepared]:
    """Makes a model one that all ranks train, with DistributedDataParallel."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def sum_over_ranks(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    yield model, optimizer, sum_over_ranks
    dist.destroy_process_group()


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sum_over_ranks: Callable[[Tensor], Tensor],
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    epochs: int,
    batch_size: int,
    checkpoint_url: str | None,
    chaos: bool,
    seed: int,
) -> dict[str, Any]:
    """Trains on this rank's shard, evaluates after each epoch, and logs the model.

    Args:
        model: Equal on all ranks.
        optimizer: Averages the gradients over all ranks.
        sum_over_ranks: Sums a tensor over all ranks.
        train_data: The rows to learn from.
        test_data: The rows to evaluate on.
        epochs: How often to go through the training rows.
        batch_size: Rows in a step of one rank.
        checkpoint_url: Where checkpoints are kept, from which a restarted training goes on; None
            for no checkpoints.
        chaos: Whether the last rank kills itself half-way, in the first attempt.
        seed: Of the order of rows.

    Returns:
        ``accuracy`` on the test rows, and ``attempts``, how often the ranks were started.
    """
    world = current_world()
    if world.rank == 0:
        log_parameters(optimizer, epochs, len(train_data), len(test_data), seed)
    with (
        train_data.make_torch_dataloader(batch_size, num_epochs=1, seed=seed) as train_loader,
        # Every row counts once, also where the ranks' numbers of rows differ.
        test_data.make_torch_dataloader(
            512, num_epochs=1, shuffle=False, tail="uneven"
        ) as test_loader,
        checkpoints_in(checkpoint_url) as checkpoints,
    ):
        restored = checkpoints.restore(model, optimizer, train_loader) if checkpoints else None
        step = first_step = restored.step if restored else 0
        if restored and world.rank == 0:
            log_to_driver(f"attempt {world.attempt} goes on after step {step}")
        # The same on all ranks, so that none waits in an allreduce for one that has ended.
        total_steps = epochs * len(train_loader)
        accuracy = 0.0
        for epoch in range(train_loader.epoch, epochs):
            model.train()
            train_loader.set_epoch(epoch)
            for batch in train_loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
                loss.backward()
                optimizer.step()
                step += 1
                log_metrics(
                    step, loss=loss, samples=batch_size, epoch=epoch + 1, total_steps=total_steps
                )
                if checkpoints and checkpoints.due(step):
                    checkpoints.save(step, model, optimizer, train_loader, epoch=epoch)
                if chaos and step == total_steps // 2 and world.attempt == 0:
                    if checkpoints:
                        checkpoints.wait()  # Else there may be nothing yet to go on from.
                    die_if_last(world.rank, world.size)
            accuracy = evaluate(model, test_loader, sum_over_ranks)
            log_metrics(step, accuracy=accuracy)
            if world.rank == 0:
                done = f"epoch {epoch + 1:2} of {epochs}"
                log_to_driver(f"{done}: loss {loss:.4f}, accuracy {accuracy:.4f}")
        if first_step == step:  # The attempt before ended after its last step.
            accuracy = evaluate(model, test_loader, sum_over_ranks)
        if checkpoints and first_step < step:
            checkpoints.save(step, model, optimizer, train_loader, epoch=epochs)
        # MLflow learns from a few rows what the network takes.
        example = next(iter(test_loader))["features"][:4].clone()
    log_model(model, input_example=example, columns="features", step=step)
    return {"accuracy": accuracy, "attempts": world.attempt + 1}


def checkpoints_in(url: str | None) -> Any:
    """A context with the manager of the checkpoints there; with None, where there are none."""
    return CheckpointManager(url, every_steps=CHECKPOINT_STEPS) if url else nullcontext()


@torch.no_grad()
def evaluate(model: nn.Module, loader: Any, sum_over_ranks: Callable[[Tensor], Tensor]) -> float:
    """The accuracy over all ranks' rows; counts are summed, so it is exact on uneven shards."""
    model.eval()
    correct_and_rows = torch.zeros(2, dtype=torch.float64)
    for batch in loader:
        hits = model(batch["features"]).argmax(dim=1) == batch["label"]
        correct_and_rows += torch.tensor([hits.sum(), len(hits)])
    correct, rows = sum_over_ranks(correct_and_rows).tolist()
    return float(correct / rows)


def log_parameters(
    optimizer: torch.optim.Optimizer, epochs: int, train_rows: int, test_rows: int, seed: int
) -> None:
    """Logs the example's own parameters, if there is a run; the runner logs how it is run."""
    # Importing it takes seconds, and ranks other than 0 do not need it.
    import mlflow

    if mlflow.active_run() is None:
        return
    mlflow.log_params(
        {
            "epochs": epochs,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "seed": seed,
            "train_rows": train_rows,
            "test_rows": test_rows,
        }
    )


def die_if_last(rank: int, size: int) -> None:
    """Kills the last rank, as a failing machine would."""
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
