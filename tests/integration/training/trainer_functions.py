"""What ranks do in the tests of ``Trainer``."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import R2Score, SpearmanCorrCoef
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy, MulticlassAUROC

from sparkdl_runner import Trainer, current_world
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.training.loop.early_stopping import EarlyStopping
from training_tables import LOSSES, network, open_table

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class TwoInputs(nn.Module):
    """Scores for 3 classes, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 1)])

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        hidden = self.body(torch.cat([left, right], dim=1))
        return {"kind": self.heads[0](hidden), "size": self.heads[1](hidden)}


def table(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    left, right = torch.randn(2, count, 2, generator=generator)
    return {
        "left": left,
        "right": right,
        "kind": (left.sum(1) > 0).long() + (right.sum(1) > 0).long(),
        "size": (left * right).sum(1),
        "weight": torch.rand(count, generator=generator),
    }


def batches(columns: dict[str, Tensor], rows: int, rank: int, size: int) -> list[dict[str, Tensor]]:
    """Each rank's part of global batches; the rows that are left over come in a padded last one."""
    count = len(columns["size"])
    found = []
    for at in range(0, count, rows * size):
        places = torch.arange(at + rank * rows, at + (rank + 1) * rows)
        batch = {name: values[places.clamp(max=count - 1)] for name, values in columns.items()}
        if count % (rows * size):
            batch["row_mask"] = places < count
        found.append(batch)
    return found


def trainer(**options: Any) -> Trainer:
    return Trainer(
        TwoInputs,
        SGD,
        {"kind": nn.functional.cross_entropy, "size": nn.functional.mse_loss},
        feature_cols={"left": ["left"], "right": "right"},
        label_cols=["kind", "size"],
        loss_weights={"size": 0.5},
        class_weights={"kind": {2: 3.0}},
        sample_weight_col="weight",
        metrics={
            "kind": {"auroc": MulticlassAUROC(3), "accuracy": MulticlassAccuracy(3)},
            "size": {"spearman": SpearmanCorrCoef()},
        },
        **options,
    )


def weights_of(it: Trainer) -> dict[str, list[float]]:
    return {name: one.double().flatten().tolist() for name, one in it.weights().items()}


def train_in_many_ways(size: int) -> dict[str, Any]:
    """Trains on the rows of one global batch size, split over the ranks that there are."""
    torch.set_num_threads(1)
    world = current_world()
    rank, ranks = world.rank, world.size
    columns = table(48)
    found: dict[str, Any] = {"buffers": []}
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "accumulated": {"gradient_accumulation_steps": 2},
        "clipped": {"gradient_clip_norm": 0.05},
    }
    if world.backend == "torch":
        ways["sharded"] = {"strategy": "fsdp2", "gradient_clip_norm": 0.05}
        ways["sharded, accumulated"] = {"strategy": "fsdp2", "gradient_accumulation_steps": 2}
    for name, options in ways.items():
        torch.manual_seed(rank)  # Whatever a rank has drawn before.
        it = trainer(seed=1, **options)
        for module in it.model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()  # Else ranks normalize by their own rows.
                module.train = lambda mode=True, self=module: self  # type: ignore[method-assign]
        rows = size // ranks // (2 if "accumulated" in name else 1)
        history = it.fit(batches(columns, rows, rank, ranks), epochs=2)
        found[name] = {
            "loss": [one["loss"] for one in history],
            "weights": weights_of(it),
            # 5 rows: in the second batch the last rank has none.
            "evaluation": it.evaluate(batches(table(5), 2, rank, ranks)),
            "local_numbers": sum(
                getattr(one, "to_local", lambda one=one: one)().numel()
                for one in it.model.parameters()
            ),
        }
    # Buffers of ranks that have seen other rows.
    it = trainer(seed=1)
    it.fit(batches(columns, size // ranks, rank, ranks), epochs=1)
    it.evaluate(batches(table(5), 2, rank, ranks))
    means = it.ranks.gather(it.model.body[1].running_mean[None])
    found["buffers"] = [one.tolist() for one in means]
    it.should_stop = rank == ranks - 1
    it._end_epoch(None)
    found["should_stop"] = it.should_stop
    return found


def final_metrics(folder: Path) -> dict[str, float]:
    """Trains on a part of each table, with global batches of 64 rows; measures on the rest.

    Without what differs by rank: batch normalization and dropout.
    """
    torch.set_num_threads(1)
    metrics = {"digits": MulticlassAccuracy(10), "breast_cancer": BinaryAccuracy()}
    batch = 64 // current_world().size
    found = {}
    for name, loss in LOSSES.items():
        it = Trainer(
            lambda name=name: nn.Sequential(
                *(part for part in network(name) if isinstance(part, (nn.Linear, nn.ReLU)))
            ),
            partial(torch.optim.Adam, lr=0.01),
            loss,
            metrics={"metric": metrics.get(name) or R2Score()},
        )
        with (
            open_table(folder / name, batch_size=batch, seed=3) as train_data,
            open_table(
                folder / f"{name}-rest", batch_size=batch, shuffle=False, tail="pad"
            ) as rest,
        ):
            it.fit(train_data, epochs=10)
            found[name] = it.evaluate(rest)["metric"]
    return found


def train_and_lose_a_rank(
    folder: Path, checkpoints: Path, die_at: int | None, **options: Any
) -> dict[str, Any]:
    """Trains on a table with all that a checkpoint has to keep; the last rank may die."""
    torch.set_num_threads(1)
    world = current_world()
    steps: list[int] = []

    def on_step(it: Trainer) -> None:
        steps.append(it.step)
        if die_at is not None and it.step == die_at - 1:
            it.checkpoints.wait()  # Before the next step, so that rank 0 has told of it too.
        if it.step == die_at and world.attempt == 0 and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        CheckpointManager(checkpoints, every_steps=3) as manager,
        open_table(folder, batch_size=32, seed=3) as train_data,
        open_table(folder, batch_size=32, shuffle=False, tail="pad") as validation_data,
    ):
        it = Trainer(
            lambda: nn.Sequential(
                nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)
            ),
            partial(torch.optim.Adam, lr=0.02),
            nn.functional.mse_loss,
            gradient_accumulation_steps=4,
            lr_scheduler=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
            warmup_epochs=2,
            early_stopping=EarlyStopping(patience=3),
            checkpoints=manager,
            on_step=on_step,
            **options,
        )
        history = it.fit(train_data, validation_data, epochs=3)
    return {"history": history, "weights": weights_of(it), "steps": steps}


def fail_with_nan() -> None:
    """Rank 1's second batch has a NaN."""
    rank = current_world().rank
    data = [{"features": torch.ones(2, 2), "label": torch.zeros(2)} for _ in range(3)]
    if rank == 1:
        data[1]["features"][0, 1] = torch.nan
    Trainer(nn.Linear(2, 1), SGD, nn.functional.mse_loss).fit(data, epochs=1)
