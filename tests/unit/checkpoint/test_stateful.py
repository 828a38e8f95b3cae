"""Anything with a state is saved and restored, and the best checkpoint is known by its metric."""

from __future__ import annotations

import math

import pytest
import torch

from sparkdl_runner.checkpoint import CheckpointManager, CheckpointMismatchError
from sparkdl_runner.checkpoint.directory.manifest import read_manifest
from sparkdl_runner.checkpoint.directory.storage import open_storage


class Sampler:
    def __init__(self) -> None:
        self.place = 0

    def state_dict(self):
        return {"place": self.place, "weights": torch.arange(3)}

    def load_state_dict(self, state):
        self.place = state["place"]
        assert torch.equal(state["weights"], torch.arange(3))


def training():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def test_others_with_a_state_go_on_by_their_names(tmp_path):
    model, optimizer, scheduler = training()
    critic, sampler = torch.nn.Linear(3, 3), Sampler()
    sampler.place = 7
    optimizer.step()
    scheduler.step()
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(
            1, model, optimizer, scheduler=scheduler, sampler=sampler, critic=critic, nothing=None
        )
        model, optimizer, again = training()
        other, sampler = torch.nn.Linear(3, 3), Sampler()
        checkpoints.wait()
        checkpoints.restore(model, optimizer, scheduler=again, sampler=sampler, critic=other)
        assert again.state_dict() == scheduler.state_dict()
        assert sampler.place == 7
        assert torch.equal(other.weight, critic.weight)
        before = model.weight.clone()
        with pytest.raises(CheckpointMismatchError, match="no state of warmup"):
            checkpoints.restore(torch.nn.Linear(2, 1), warmup=Sampler())
        assert torch.equal(model.weight, before)
        with pytest.raises(TypeError, match=r"metric= is a float.*go into metrics="):
            checkpoints.save(2, model, metric=0.5)


def test_the_best_stays_and_its_metric_is_in_the_manifest(tmp_path):
    settings = {"keep_last": 1, "best_metric": "loss", "best_mode": "max"}
    with CheckpointManager(tmp_path, **settings) as checkpoints:
        for step, loss in enumerate([1.0, 3.0, math.nan, 2.0, None], 1):
            checkpoints.save(step, metrics=None if loss is None else {"loss": loss})
        checkpoints.wait()
        assert [name.step for name in checkpoints.list()] == [2, 5]
        best = read_manifest(open_storage(f"file:{tmp_path}"), checkpoints.list()[0])
        assert (best.best_metric, best.best_mode, best.metrics) == ("loss", "max", {"loss": 3.0})
        with pytest.raises(ValueError, match="metrics has accuracy, and best_metric is 'loss'"):
            checkpoints.save(6, metrics={"accuracy": 1})
    with pytest.raises(ValueError, match="Name the metric by which a checkpoint is best"):
        CheckpointManager(tmp_path, keep_best=1)
