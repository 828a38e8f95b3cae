"""A training by each framework, as a script: python framework_scripts.py FRAMEWORK STEPS FILE.

Rank 0 writes its rows per second to the file, and those per second of its processor time. The first
steps do not count.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH, WIDTH, CLASSES = 64, 512, 10
WARM_UP = 20


def batches(steps: int) -> Iterator[tuple[Any, Any]]:
    """Gives the same batch again: what feeds the model is the same for all."""
    import torch

    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))
    for _ in range(steps):
        yield batch


def network() -> Any:
    """The model of all but Keras and TensorFlow."""
    from torch import nn

    hidden = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


class Clock:
    """An iterable of batches that knows how fast they were taken."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rates = {"clock": 0.0, "processor": 0.0}
        self._began: dict[str, float] = {}

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for step, batch in enumerate(batches(self.steps)):
            self.begin_step(step)
            yield batch

    def begin_step(self, step: int) -> None:
        """Takes the time at the beginning of a step, counted from 0."""
        now = {"clock": time.perf_counter(), "processor": time.process_time()}
        if step == WARM_UP:
            self._began = now
        elif step > WARM_UP:  # Frameworks that know the length do not ask for more than that.
            rows = (step - WARM_UP) * BATCH
            self.rates = {name: rows / (now[name] - self._began[name]) for name in now}


def lightning(clock: Clock) -> None:
    """By Lightning's Trainer."""
    import lightning as L
    import torch

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    devices = int(os.environ["WORLD_SIZE"])
    trainer = L.Trainer(accelerator="cpu", strategy="ddp", devices=devices, max_epochs=1, **quiet)
    trainer.fit(Module(), clock)


def fabric(clock: Clock) -> None:
    """By Lightning's Fabric."""
    import lightning as L
    import torch

    devices = int(os.environ["WORLD_SIZE"])
    fabric = L.Fabric(accelerator="cpu", strategy="ddp", devices=devices)
    fabric.launch()
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
    for inputs, labels in clock:
        fabric.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()


def accelerate(clock: Clock) -> None:
    """By Accelerate."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    for inputs, labels in clock:
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


def transformers(clock: Clock) -> None:
    """By the Trainer of Transformers."""
    import torch
    import transformers as hf

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
            return {"loss": torch.nn.functional.cross_entropy(self.network(inputs), labels)}

    class Named:
        def __len__(self) -> int:
            return len(clock)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({"inputs": inputs, "labels": labels} for inputs, labels in clock)

    class Trainer(hf.Trainer):
        def get_train_dataloader(self) -> Any:
            return Named()

    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
    settings = hf.TrainingArguments(use_cpu=True, num_train_epochs=1, disable_tqdm=True, **quiet)
    Trainer(Model(), settings).train()


def keras(clock: Clock) -> None:
    """By fit of Keras on torch, with each gradient averaged as soon as it is there."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch.distributed as dist

    dist.init_process_group("gloo")
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def average(weight: Any) -> None:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()

    for variable in model.trainable_variables:
        variable.value.register_post_accumulate_grad_hook(average)
    model.fit((batch for batch in clock), epochs=1, verbose=0)
    dist.destroy_process_group()


def tensorflow(clock: Clock) -> None:
    """By fit of Keras on TensorFlow, with MultiWorkerMirroredStrategy."""
    import numpy as np
    import tensorflow as tf
    import tf_keras as keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(2)]
        model = keras.Sequential(
            [keras.layers.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES)]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    inputs = random.standard_normal((BATCH, WIDTH), dtype=np.float32)
    batch = tf.data.Dataset.from_tensors((inputs, random.integers(CLASSES, size=BATCH))).repeat()
    model.fit(
        strategy.distribute_datasets_from_function(lambda _: batch),
        steps_per_epoch=len(clock),
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_batch_begin=lambda step, logs: clock.begin_step(step))
        ],
    )


def end_group() -> None:
    """Ends torch's group where a framework leaves it, as its threads must not outlive Python.

    What holds a model in a cycle goes first, since a model must not be the last to hold its group.
    """
    if (torch := sys.modules.get("torch")) and torch.distributed.is_initialized():
        gc.collect()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    name, steps, file = sys.argv[1:]
    measured = Clock(int(steps))
    globals()[name](measured)
    if os.environ["RANK"] == "0":
        Path(file).write_text(json.dumps(measured.rates))
    end_group()
