"""Handwritten digits: what the ranks run is ordinary Horovod, or DistributedDataParallel, code.

Besides ``frames``, which runs on the driver, nothing of it knows Spark: each rank reads its shard
of what was converted, and the functions are those that would run under horovodrun or torchrun. Nor
does it set MLflow up: on rank 0, what is logged lands in the run that the driver has opened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparkdl_runner import current_world, log_to_driver
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.tracking import log_metrics, log_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data import SparkDatasetConverter

SEED = 20
TEST_FRACTION = 0.2
CHECKPOINT_STEPS = 50


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """scikit-learn's digits, ``features``, an ML vector of 64 pixels, and ``label``.

    Returns:
        The rows to learn from and those to evaluate on, by the names of ``fit``'s arguments.
    """
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = [(Vectors.dense(row), int(label)) for row, label in zip(pixels, labels, strict=True)]
    # From one partition, a seed splits off the same rows however many slots there are.
    frame = spark.createDataFrame(rows, ["features", "label"]).coalesce(1)
    parts = frame.randomSplit([1 - TEST_FRACTION, TEST_FRACTION], seed=SEED)
    return dict(zip(("train_data", "test_data"), parts, strict=True))


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


def train_with_horovod(
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    learning_rate: float = 3e-3,
    epochs: int = 15,
    batch_size: int = 32,
    checkpoint_url: str | None = None,
    chaos: bool = False,
) -> dict[str, Any]:
    """Trains with Horovod. For the other arguments and the result see ``fit``."""
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(SEED)
    model = DigitsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def sum_over_ranks(values: Tensor) -> Tensor:
        return hvd.allreduce(values, op=hvd.Sum)

    return fit(
        model,
        optimizer,
        sum_over_ranks,
        train_data=train_data,
        test_data=test_data,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint_url=checkpoint_url,
        chaos=chaos,
    )


def train_with_torch(
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    learning_rate: float = 3e-3,
    epochs: int = 15,
    batch_size: int = 32,
    checkpoint_url: str | None = None,
    chaos: bool = False,
) -> dict[str, Any]:
    """Trains with DistributedDataParallel. For the other arguments and the result see ``fit``."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def sum_over_ranks(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    result = fit(
        model,
        optimizer,
        sum_over_ranks,
        train_data=train_data,
        test_data=test_data,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint_url=checkpoint_url,
        chaos=chaos,
    )
    dist.destroy_process_group()
    return result


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
        checkpoint_url: Where the state is kept, from which a restarted training goes on; None for
            nowhere.
        chaos: Whether the last rank kills itself half-way, the first time that it comes there.

    Returns:
        ``accuracy`` on the test rows, ``samples_per_second`` of training over all ranks, and
        ``attempts``, how often the ranks were started.
    """
    world = current_world()
    import mlflow

    if world.rank == 0 and mlflow.active_run() is not None:
        log_parameters(optimizer, epochs, len(train_data), len(test_data))
    with (
        train_data.make_torch_dataloader(batch_size, num_epochs=1, seed=SEED) as train_loader,
        # Every row counts once, also where the ranks' numbers of rows differ.
        test_data.make_torch_dataloader(
            512, num_epochs=1, shuffle=False, tail="uneven"
        ) as test_loader,
        keeping(checkpoint_url) as checkpoints,
    ):
        restored = checkpoints.restore(model, optimizer, train_loader) if checkpoints else None
        step = first_step = restored.step if restored else 0
        if restored and world.rank == 0:
            log_to_driver(f"attempt {world.attempt} goes on after step {step}")
        # The same on all ranks: none is left waiting for the others in its allreduce.
        total_steps = epochs * len(train_loader)
        training_seconds = 0.0
        accuracy = 0.0
        for epoch in range(train_loader.epoch, epochs):
            started = time.perf_counter()
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
                    die_if_last(world.rank, world.size)
            training_seconds += time.perf_counter() - started
            accuracy = evaluate(model, test_loader, sum_over_ranks)
            log_metrics(step, accuracy=accuracy)
            if world.rank == 0:
                done = f"epoch {epoch + 1:2} of {epochs}"
                log_to_driver(f"{done}: loss {loss:.4f}, accuracy {accuracy:.4f}")
        if first_step == step:  # It was interrupted after its last step.
            accuracy = evaluate(model, test_loader, sum_over_ranks)
        if checkpoints and first_step < step:
            checkpoints.save(step, model, optimizer, train_loader, epoch=epochs)
    log_model(model, input_example=example_digits(), step=step)
    samples = (step - first_step) * batch_size * world.size
    return {
        "accuracy": accuracy,
        "samples_per_second": samples / training_seconds if samples else 0.0,
        "attempts": world.attempt + 1,
    }


def keeping(url: str | None) -> Any:
    """What keeps checkpoints there, as a context; that of None keeps none."""
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
    optimizer: torch.optim.Optimizer, epochs: int, train_rows: int, test_rows: int
) -> None:
    """Tells MLflow what this job is about; how it is run is logged already."""
    import mlflow

    mlflow.log_params(
        {
            "epochs": epochs,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "seed": SEED,
            "train_rows": train_rows,
            "test_rows": test_rows,
        }
    )


def example_digits() -> Tensor:
    """A few digits, [rows, 64], of which MLflow learns what the network takes."""
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().data[:4], dtype=torch.float32)


def die_if_last(rank: int, size: int) -> None:
    """Ends the last rank as a machine that fails would."""
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
