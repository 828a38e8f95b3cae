"""A model that cannot be logged is told of before the training, not after it."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from types import SimpleNamespace

import mlflow
import pytest
import torch

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.tracking.models.log_checks import check_can_log, check_signature

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run whose artifacts go to a folder that is not there yet."""
    info = SimpleNamespace(artifact_uri=f"file://{tmp_path}/mlruns/1/artifacts")
    monkeypatch.setenv("MLFLOW_RUN_ID", "r")
    monkeypatch.setattr(mlflow, "get_run", lambda run_id: SimpleNamespace(info=info))
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "sqlite:///mlflow.db")
    return info


def test_a_run_that_can_hold_the_model_is_fine(run):
    check_can_log(100)
    run.artifact_uri = "s3://bucket/1"
    check_can_log(100)


def test_without_a_run_there_is_nothing_to_try(monkeypatch):
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(mlflow, "get_run", None)
    check_can_log(1 << 80)


def test_a_server_is_not_waited_for(run, monkeypatch):
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "http://down:5000")
    monkeypatch.setattr(mlflow, "get_run", None)
    check_can_log(100)


def test_a_store_that_this_rank_does_not_reach_is_told(run, monkeypatch):
    def refuse(run_id):
        raise mlflow.MlflowException("MLflow's store is a file on the driver's.")

    monkeypatch.setattr(mlflow, "get_run", refuse)
    with pytest.raises(RunnerError, match=r"not begun, .* logged at the end: MLflow's store is a "):
        check_can_log(0)


def test_a_folder_that_may_not_be_written_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(RunnerError, match=f"this user may not write to {tmp_path}. Give it"):
        check_can_log(0)


def test_too_little_room_is_told_with_what_it_takes(run, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 40, 60))
    check_can_log(60)
    with pytest.raises(RunnerError, match=r"takes at least 61 bytes, and .* has 60 free"):
        check_can_log(61)


class Network(torch.nn.Module):
    """Returns what it was made with, of a row's sum."""

    def __init__(self, returned):
        super().__init__()
        self.returned = returned
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, rows):
        return self.returned(self.dropout(rows).sum(dim=1))


def test_a_signature_is_tried_and_the_network_stays_as_it_is():
    network, state = Network(lambda sums: {"sum": sums}), torch.random.get_rng_state()
    check_signature(network, torch.ones(2, 3), ["a", "b", "c"])
    assert network.training
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("returned", "columns", "told"),
    [
        (lambda sums: {"sum": sums, "unit": "m"}, None, "returns a dict that holds a str"),
        (lambda sums: sums.to(torch.bfloat16), None, r"returns torch\.bfloat16, .* as by \.float"),
        (lambda sums: sums, ["a", "b"], "log_model: "),
    ],
)
def test_a_model_that_mlflow_cannot_describe_is_told(returned, columns, told):
    with pytest.raises((TypeError, ValueError), match=told):
        check_signature(Network(returned), torch.ones(2, 3), columns)
