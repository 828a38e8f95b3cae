"""A training by each framework, as a script: python framework_scripts.py FRAMEWORK STEPS FILE.

Rank 0 writes its rows per second to the file. The first steps do not count.
"""

from __future__ import annotations

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
    """The model of all but Keras."""
    from torch import nn

    hidden = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


class Clock:
    """An iterable of batches that knows how fast they were taken."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rate = 0.0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        began = 0.0
        for step, batch in enumerate(batches(self.steps)):
            if step == WARM_UP:
                began = time.perf_counter()
            elif step > WARM_UP:  # Who knows the length does not ask for more than that.
                self.rate = (step - WARM_UP) * BATCH / (time.perf_counter() - began)
            yield batch


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


if __name__ == "__main__":
    name, steps, file = sys.argv[1:]
    measured = Clock(int(steps))
    globals()[name](measured)
    if os.environ["RANK"] == "0":
        Path(file).write_text(str(measured.rate))
