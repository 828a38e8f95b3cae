"""What a search may draw from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs import tune
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training import mlflow_run, of_function
from sparkdl_runner.jobs.training.settings import RunConfigSettings
from sparkdl_runner.jobs.tuning import search
from sparkdl_runner.jobs.tuning.settings import Choice, SearchSettings, TuneSettings
from sparkdl_runner.tracking import Tracking

optuna = pytest.importorskip("optuna")

SMALL = {"metric": "accuracy", "search_space": {"x": {"low": 0.0, "high": 1.0}}}


def drawn(**choice) -> list:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    one = load(Choice, None, choice)
    return [one.draw(study.ask(), "x") for _ in range(50)]


def test_draws_stay_in_their_range_and_kind():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    whole = drawn(low=1, high=4)
    assert set(whole) == {1, 2, 3, 4}
    assert set(drawn(low=10, high=30, step=10)) == {10, 20, 30}
    assert set(drawn(choices=["a", "b"])) == {"a", "b"}
    rates = drawn(low=1e-4, high=1e-1, log=True)
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert sum(rate < 1e-2 for rate in rates) > 20, "as many in each decade"


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({}, "give either low and high, or choices."),
        ({"low": 1}, "give either low and high, or choices."),
        ({"low": 1, "high": 2, "choices": [1]}, "give either low and high, or choices."),
        ({"low": 2, "high": 1}, "low is 2, which is not below high, 1."),
        ({"low": 1, "high": 1}, "low is 1, which is not below high, 1."),
        ({"low": 0, "high": 1, "log": True}, "log needs a low above 0"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "log needs a low above 0 and no step"),
        ({"choices": []}, "choices is a list of at least one value"),
        ({"choices": [1], "log": True}, "choices is a list of at least one value, without log"),
        ({"choices": [1], "step": 1}, "choices is a list of at least one value, without log"),
        ({"lo": 1, "high": 2}, "there is no key 'lo'; did you mean 'low'?"),
    ],
)
def test_what_is_no_range_is_refused(choice, sentence):
    with pytest.raises(ConfigError) as raised:
        load(Choice, None, choice)
    assert sentence in str(raised.value)


def test_a_search_needs_mlflow_and_leaves_what_is_fixed_alone():
    good = {
        "example": "digits",
        "num_proc": 1,
        "tracking": {"experiment": "x"},
        "tune": {"metric": "accuracy", "search_space": {"epochs": {"low": 1, "high": 3}}},
    }
    assert load(TuneSettings, None, good).tune.trials == 20
    for change, sentence in (
        ({"tracking": False}, "tune keeps its trials in MLflow"),
        ({"hyperparameters": {"epochs": 3}}, "hyperparameters.epochs is fixed, and in the search"),
        ({"tracking": {"run_id": "0123"}}, "tracking.run_id resumes one training"),
    ):
        with pytest.raises(ConfigError) as raised:
            load(TuneSettings, None, {**good, **change})
        assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("num_proc", "parallel", "at_once"),
    [(2, "auto", 3), (2, 2, 2), (4, 2, 1), (8, "auto", 1), (-2, "auto", 1), (0, 4, 1)],
)
def test_as_many_trials_at_once_as_have_slots(monkeypatch, num_proc, parallel, at_once):
    asked = []
    monkeypatch.setattr(search.slots, "count_places", lambda *asked_of: asked.append(asked_of) or 7)
    monkeypatch.setattr(search, "task_shape", lambda *_: "a GPU for each rank")
    tune_settings = load(SearchSettings, None, {**SMALL, "parallel": parallel})
    settings = SimpleNamespace(
        num_proc=num_proc, wanted_tracking=None, tune=tune_settings, run_config=RunConfigSettings()
    )
    spark = SimpleNamespace(sparkContext="a context")
    for found, expected in ((spark, at_once), (None, 1)):
        one = search.Search(settings, SimpleNamespace(spark=found))
        assert one._at_once == expected
        assert one._tracking == Tracking()
    assert set(asked) <= {("a context", "a GPU for each rank")}, "slots for what ranks ask for"


def in_an_experiment(experiment: str) -> None:
    mlflow = SimpleNamespace()
    mlflow.set_experiment(experiment)


def test_a_search_is_where_its_function_has_its_runs(monkeypatch):
    found = []

    def stop(tracking: Tracking) -> None:
        found.append(tracking.experiment)
        raise RunnerError("seen")

    monkeypatch.setattr(search, "make_default_store", stop)
    monkeypatch.setattr(search.Search, "_parallel", lambda self: 1)
    hyperparameters = {"experiment": "nightly"}
    settings = SimpleNamespace(
        wanted_tracking=None,
        tune=load(SearchSettings, None, SMALL),
        hyperparameters=hyperparameters,
    )
    work = SimpleNamespace(main=in_an_experiment, parameters=dict)
    one = search.Search(settings, SimpleNamespace(spark=None, work=work))
    with pytest.raises(RunnerError, match="seen"), one._parent_run():
        pass
    assert found == ["nightly"]


def test_the_first_trial_that_cannot_be_kept_ends_those_that_run_beside_it(monkeypatch):
    monkeypatch.setattr(search.Search, "_parallel", lambda self: 2)
    cancelled = []
    context = SimpleNamespace(
        setJobGroup=lambda *group, **options: None, cancelJobGroup=cancelled.append
    )
    settings = SimpleNamespace(wanted_tracking=None, tune=load(SearchSettings, None, SMALL))
    training = SimpleNamespace(spark=SimpleNamespace(sparkContext=context))
    one, begun = search.Search(settings, training), iter(range(2))
    one._parent_id = "0123"

    def run_trial() -> None:
        if next(begun) == 0:
            raise RunnerError("the storage is gone")
        assert one._stopping.wait(300), "nobody has told this trial to end"

    one._run_trial = run_trial
    with pytest.raises(RunnerError, match="the storage is gone"):
        one._run_trials(2)
    assert set(cancelled) <= {"tune-0123"}


def train(epochs: int, rate: float = 0.1, name: str = "") -> None:
    pass


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"epochs": {"choices": [1, "abc"]}}, "tune.search_space.epochs is 'abc'; m:f takes a"),
        ({"epochs": {"low": 1, "high": 2.5}}, "search_space.epochs is 1.0; m:f takes a whole"),
        ({"epochs": {"low": 1, "high": 2}, "rate": {"choices": ["o.1"]}}, "rate is 'o.1'"),
        (
            {"epochs": {"choices": [1]}, "rate": {"low": 1, "high": 2}, "nam": {"choices": ["a"]}},
            "did you mean 'name'",
        ),
    ],
)
def test_values_that_the_function_does_not_take_are_refused_at_once(monkeypatch, space, told):
    settings = {
        "function": "m:f",
        "num_proc": -1,
        "tracking": {"experiment": "x"},
        "tune": {"metric": "accuracy", "search_space": space},
    }
    monkeypatch.setattr(of_function, "find_function", lambda _: train)
    monkeypatch.setattr(mlflow_run, "use", lambda _: None)
    with pytest.raises(ConfigError) as raised:
        tune.run(load(TuneSettings, None, settings))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.array(2), 2.0),
        (True, None),
        ("3", None),
        (np.ones(2), None),
    ],
)
def test_what_a_trial_may_be_judged_by(value, number):
    assert search.number_of(value) == number
