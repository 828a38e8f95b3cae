"""A training, as a script: python training_script.py WAY MODEL FEED STEPS FOLDER.

The way is a loop by hand (``ddp``, ``horovod``) or ``trainer``; the feed is ``synthetic``,
``digits``, or a loader and the URL of its table. Each rank writes to the folder its rows per second
after the first steps, those per second of its processor time, and when its first step was over; of
digits also the share that the model tells rightly of some it has not seen.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

BATCH, WIDTH, HIDDEN, CLASSES = 64, 64, 512, 10
WARM_UP, TESTED = 20, 297  # Steps that do not count, and digits that no rank trains on.
Rows = tuple[Any, Any]
"""Features ``[BATCH, WIDTH]`` and labels ``[BATCH]``."""


def place() -> tuple[int, int]:
    """This rank and how many there are; horovodrun sets no variables but Horovod's."""
    prefix = "HOROVOD_" if "RANK" not in os.environ else ""
    size = os.environ.get("HOROVOD_SIZE") or os.environ["WORLD_SIZE"]
    return int(os.environ[f"{prefix}RANK"]), int(size)


def synthetic(_: str) -> Iterator[Rows]:
    """Gives the same batch again: what feeds the model is the same for all."""
    torch.manual_seed(0)
    yield from cycle([(torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,)))])


def digits(_: str = "", tested: bool = False) -> Iterator[Rows]:
    """Images of digits: batches of this rank's share in orders of their own, or those to test."""
    from sklearn.datasets import load_digits

    rank, size = place()
    found = load_digits()
    features, labels = torch.tensor(found.data).float() / 16, torch.tensor(found.target).long()
    if tested:
        yield features[-TESTED:], labels[-TESTED:]
        return
    order = torch.Generator().manual_seed(0)
    while True:
        shuffled = torch.randperm(len(labels) - TESTED, generator=order)[rank::size]
        yield from ((features[one], labels[one]) for one in shuffled.split(BATCH)[:-1])


def loader(url: str) -> Iterator[Rows]:
    """A table by this package's loader."""
    from sparkdl_runner.data import make_spark_converter

    converter = make_spark_converter(url)
    with converter.make_torch_dataloader(BATCH, num_epochs=None, seed=0) as batches:
        yield from ((rows["features"], rows["label"]) for rows in batches)


def dataloader(url: str) -> Iterator[Rows]:
    """The same table in memory, and of it batches by torch's DataLoader."""
    import pyarrow.parquet as pq
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rank, size = place()
    table = pq.read_table(url.removeprefix("file://"))
    features = torch.tensor(table["features"].combine_chunks().flatten().to_numpy())
    labels = torch.tensor(table["label"].to_numpy())
    rows = TensorDataset(features.reshape(-1, WIDTH), labels)
    sampler: Any = DistributedSampler(rows, size, rank)
    for epoch in range(sys.maxsize):
        sampler.set_epoch(epoch)
        yield from DataLoader(rows, BATCH, sampler=sampler, drop_last=True)


def network(model: str) -> Any:
    """A model, which takes each row as a flat image of 8 x 8."""
    torch.manual_seed(0)
    if model == "mlp":
        hidden = [nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(HIDDEN, CLASSES))
    if model == "cnn":
        layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(64 * 16, CLASSES))
    block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    tokens = [nn.Unflatten(1, (8, 8)), nn.Linear(8, 64), nn.TransformerEncoder(block, 2)]
    return nn.Sequential(*tokens, nn.Flatten(), nn.Linear(8 * 64, CLASSES))


class Clock:
    """An iterable of batches that knows how fast they were taken."""

    def __init__(self, feed: Iterator[Rows], model: str, steps: int) -> None:
        self.feed, self.model, self.steps = feed, model, steps
        self.names: tuple[str, ...] = ()  # Of features and labels, where batches are dicts.
        self.numbers = {"clock": 0.0, "processor": 0.0, "first": 0.0}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        for step, rows in enumerate(islice(self.feed, self.steps)):
            now = {"clock": time.perf_counter(), "processor": time.process_time()}
            if step == 1:
                self.numbers["first"] = time.time()
            if step == WARM_UP:
                began = now
            elif step > WARM_UP:
                count = (step - WARM_UP) * BATCH
                self.numbers |= {name: count / (now[name] - began[name]) for name in now}
            yield dict(zip(self.names, rows, strict=True)) if self.names else rows


def ddp(clock: Clock) -> Any:
    """By hand, for torch.distributed."""
    torch.distributed.init_process_group("gloo")
    model = network(clock.model)
    parallel = nn.parallel.DistributedDataParallel(model)
    by_hand(clock, parallel, torch.optim.Adam(parallel.parameters()))
    return model


def horovod(clock: Clock) -> Any:
    """By hand, for Horovod."""
    import horovod.torch as hvd

    hvd.init()
    model = network(clock.model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    adam = torch.optim.Adam(model.parameters())
    by_hand(clock, model, hvd.DistributedOptimizer(adam, model.named_parameters()))
    return model


def by_hand(clock: Clock, model: Any, optimizer: Any) -> None:
    """The loop of both libraries."""
    for inputs, labels in clock:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def trainer(clock: Clock) -> None:
    """By this package's Trainer."""
    from sparkdl_runner import Trainer

    clock.names = ("features", "label")
    Trainer(network(clock.model), torch.optim.Adam, cross_entropy).fit(clock, epochs=1)


if __name__ == "__main__":
    way, model, name, steps, folder = sys.argv[1:]
    kind, _, url = name.partition(" ")
    clock = Clock(globals()[kind](url), model, int(steps))
    trained = globals()[way](clock)
    if kind == "digits":
        [(features, labels)] = digits(tested=True)
        right = trained(features).argmax(1) == labels
        clock.numbers["accuracy"] = float(right.float().mean())
    Path(folder, f"rank-{place()[0]}").write_text(json.dumps(clock.numbers))
    del trained
    gc.collect()  # A model, perhaps in a cycle, must not be the last to hold its group.
    if torch.distributed.is_initialized():  # Its threads must not outlive Python.
        torch.distributed.destroy_process_group()
