"""The trials of a search leave spare workers for one another."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sparkdl_runner.jobs import training
from sparkdl_runner.jobs.training import Training
from sparkdl_runner.jobs.training.phases import Phases
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.jobs.tuning.search import Search
from sparkdl_runner.tracking.settings import Tracking


@pytest.mark.parametrize(("runner", "seconds"), [({}, 60), ({"spare_seconds": 0}, 0)])
def test_a_trial_leaves_spares_unless_the_settings_say_otherwise(monkeypatch, runner, seconds):
    configs = []

    def make_runner(*, num_proc, backend, config):
        configs.append(config)
        return SimpleNamespace(reports=[], mlflow_run_id=None, run=lambda main: {"height": 1.0})

    monkeypatch.setattr(training, "DistributedRunner", make_runner)
    settings = TrainSettings(function="bowl:train", num_proc=-2, runner=runner)
    search = SimpleNamespace(
        _settings=SimpleNamespace(
            tune=SimpleNamespace(search_space={}, metric="height"), hyperparameters={}
        ),
        _tracking=Tracking(),
        _parent_id="parent",
        _lock=threading.Lock(),
        _running=set(),
        _training=Training(
            settings=settings,
            work=SimpleNamespace(main=print, arguments=lambda given: {}, run_name=None),
            data={},
            spark=None,
            resumed_url=None,
            phases=Phases(),
        ),
        _metric=lambda value, run_id: value["height"],
    )
    trial = SimpleNamespace(number=0, set_user_attr=lambda name, value: None)
    assert Search._trial(search, trial) == 1.0
    assert [one.spare_seconds for one in configs] == [seconds]
