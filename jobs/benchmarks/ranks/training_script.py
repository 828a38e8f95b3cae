"""A training, as a script: python training_script.py WAY MODEL FEED STEPS FOLDER.

The way is a loop by hand (``ddp``, ``horovod``), ``trainer``, or a framework; the feed is
``synthetic``, ``digits``, or a loader and the URL of its table. Each rank writes to the folder its
rows per second after the first steps, those per second of its processor time, and when its first
step was over; of digits also the share that the model tells rightly of some it has not seen.
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
    """A model of all but Keras and TensorFlow, which takes each row as a flat image of 8 x 8."""
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
        self._began: dict[str, float] = {}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        for step, rows in enumerate(islice(self.feed, self.steps)):
            self.begin_step(step)
            yield dict(zip(self.names, rows, strict=True)) if self.names else rows

    def begin_step(self, step: int) -> None:
        """Takes the time at the beginning of a step, counted from 0."""
        now = {"clock": time.perf_counter(), "processor": time.process_time()}
        if step == 1:
            self.numbers["first"] = time.time()
        if step == WARM_UP:
            self._began = now
        elif step > WARM_UP:  # Frameworks that know the length do not ask for more than that.
            rows = (step - WARM_UP) * BATCH
            self.numbers |= {name: rows / (now[name] - self._began[name]) for name in now}


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


def by_hand(clock: Clock, model: Any, optimizer: Any, backward: Any = None) -> None:
    """The loop of all that have none of their own."""
    for inputs, labels in clock:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        backward(loss) if backward else loss.backward()
        optimizer.step()


def trainer(clock: Clock) -> None:
    """By this package's Trainer."""
    from sparkdl_runner import Trainer

    clock.names = ("features", "label")
    Trainer(network(clock.model), torch.optim.Adam, cross_entropy).fit(clock, epochs=1)


def lightning(clock: Clock) -> None:
    """By Lightning's Trainer."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(clock.model)

        def training_step(self, batch: Any) -> Any:
            return cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    devices = int(os.environ["WORLD_SIZE"])
    trainer = L.Trainer(accelerator="cpu", strategy="ddp", devices=devices, max_epochs=1, **quiet)
    trainer.fit(Module(), clock)


def accelerate(clock: Clock) -> None:
    """By Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(clock.model)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    by_hand(clock, model, optimizer, accelerator.backward)
    accelerator.end_training()


def transformers(clock: Clock) -> None:
    """By the Trainer of Transformers."""
    import transformers as hf

    class Trainer(hf.Trainer):
        def get_train_dataloader(self) -> Any:
            return clock

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return cross_entropy(model(inputs["inputs"]), inputs["labels"])

    clock.names = ("inputs", "labels")
    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
    settings = hf.TrainingArguments(use_cpu=True, num_train_epochs=1, disable_tqdm=True, **quiet)
    Trainer(network(clock.model), settings).train()


def keras_model(keras: Any) -> Any:
    """The MLP of Keras, compiled."""
    layers = [keras.layers.Dense(HIDDEN, activation="relu") for _ in range(2)]
    inputs = keras.layers.Input((WIDTH,))
    model = keras.Sequential([inputs, *layers, keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def keras(clock: Clock) -> None:
    """By fit of Keras on torch, with each gradient averaged as soon as it is there."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    torch.distributed.init_process_group("gloo")
    model = keras_model(keras)

    def average(weight: Any) -> None:
        torch.distributed.all_reduce(weight.grad)
        weight.grad /= torch.distributed.get_world_size()

    for variable in model.trainable_variables:
        variable.value.register_post_accumulate_grad_hook(average)
    model.fit((batch for batch in clock), epochs=1, verbose=0)
    torch.distributed.destroy_process_group()


def tensorflow(clock: Clock) -> None:
    """By fit of Keras on TensorFlow, with MultiWorkerMirroredStrategy."""
    import tensorflow as tf
    import tf_keras as keras

    if "TF_CONFIG" not in os.environ:  # TensorFlow has no launcher: torchrun only starts processes.
        rank, size = place()
        first = int(os.environ["MASTER_PORT"]) + 1
        workers = [f"127.0.0.1:{first + one}" for one in range(size)]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(config)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras_model(keras)
    batch = tf.data.Dataset.from_tensors(tuple(one.numpy() for one in next(clock.feed))).repeat()
    model.fit(
        strategy.distribute_datasets_from_function(lambda _: batch),
        steps_per_epoch=len(clock),
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_batch_begin=lambda step, logs: clock.begin_step(step))
        ],
    )


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
