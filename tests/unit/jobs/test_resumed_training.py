"""A training that goes on with an MLflow run goes on with the checkpoints of that run."""

from __future__ import annotations

import re

import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs import training
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.tracking import Tracking


def knows_checkpoints(checkpoint_url):
    """A training function that can go on."""


def knows_none(rate):
    """One that cannot."""


def takes_anything(**arguments):
    """One of which nothing is known."""


@pytest.fixture
def tagged(monkeypatch):
    """What the run's tag says, by the run's id."""
    tags = {}
    monkeypatch.setattr(mlflow_run, "tag", lambda run_id, name, seconds: tags[run_id])
    return tags


def resumed(main, run_id, **settings):
    given = {"function": "a:b", "num_proc": 1, "data": {"x": "t"}, **settings}
    tracking = Tracking(run_id=run_id)
    return training._resumed_url(load(TrainSettings, None, given), tracking, main)


def test_a_new_run_has_no_checkpoints_and_nobody_is_asked_for_them(tagged):
    assert resumed(knows_checkpoints, None, checkpoint_url="/c") is None


@pytest.mark.parametrize("main", [knows_checkpoints, takes_anything])
def test_the_runs_own_place_counts(tagged, main):
    tagged["r"] = "s3://bucket/c-1"
    assert resumed(main, "r") == "s3://bucket/c-1"
    assert resumed(main, "r", checkpoint_url="/elsewhere") == "s3://bucket/c-1"


def test_a_run_without_checkpoints_is_gone_on_with_unless_some_are_asked_for(tagged):
    tagged["r"] = None
    assert resumed(knows_none, "r") is None
    with pytest.raises(ConfigError, match=r"the MLflow run r has no checkpoints of this job"):
        resumed(knows_checkpoints, "r", checkpoint_url="/c")


def test_a_function_that_could_not_go_on_is_refused(tagged):
    tagged["r"] = "s3://bucket/c-1"
    with pytest.raises(ConfigError, match=r"a:b has no argument checkpoint_url to go on from"):
        resumed(knows_none, "r")


def test_a_new_folder_of_checkpoints_has_the_trainings_name_without_its_secrets(monkeypatch):
    monkeypatch.setenv("SHOP_API_KEY", "hunter2-hunter2")
    given = {"function": "a:b", "num_proc": 1, "data": {"x": "t"}, "checkpoint_url": "/c"}
    given["tracking"] = {"tracking_uri": "sqlite:///none.db"}
    settings = load(TrainSettings, None, {**given, "name": "of-hunter2-hunter2"})
    one = training.Training(
        settings=settings, work=None, data={}, spark=None, resumed_url=None, phases=None
    )
    assert re.fullmatch(r"file:///c/of-redacted-[0-9a-f]{8}", one._new_checkpoint_url())
