"""Training that is interrupted at any step and goes on ends with the same bits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from small_training import Training, equal, open_loader, write_rows
from sparkdl_runner.checkpoint import CheckpointManager

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

STEPS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_rows(directory)
    return directory


def train(data, directory, stop_at: int | None, **settings) -> dict[str, torch.Tensor]:
    """Trains until a step at which the process goes away without a word, or to the end."""
    training = Training()
    with (
        open_loader(data) as loader,
        CheckpointManager(directory, every_steps=1, **settings) as checkpoints,
    ):
        restored = checkpoints.restore(training.model, training.optimizer, loader)
        step = restored.step if restored else 0
        assert step == 0 or restored.extra == {"draws": [step]}
        for batch in loader:
            noise = random.random() + np.random.random()
            training.step(batch["vector"] / 40 + noise)
            step += 1
            if checkpoints.due(step):
                checkpoints.save(
                    step, training.model, training.optimizer, loader, {"draws": [step]}
                )
            if step in (stop_at, STEPS):
                break
    return training.weights()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_interrupted_at_any_step_the_weights_are_the_same_to_the_bit(data, in_memory, asynchronous):
    def seed():
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)

    seed()
    undisturbed = train(data, in_memory / "undisturbed", None, asynchronous=asynchronous)
    for stop_at in range(1, STEPS) if asynchronous else (1, 5):
        seed()
        train(data, in_memory / f"{stop_at}", stop_at, asynchronous=asynchronous)
        _ = random.random(), np.random.random(), torch.rand(3)  # as in another process
        assert equal(train(data, in_memory / f"{stop_at}", None), undisturbed)
