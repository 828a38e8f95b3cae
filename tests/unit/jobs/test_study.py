"""A search's study: what its settings name, its storage, and which trials are pruned."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.tuning.pruning import Pruning
from sparkdl_runner.jobs.tuning.settings import SearchSettings
from sparkdl_runner.jobs.tuning.study import open_study, storage_must_answer
from sparkdl_runner.rank.world import Peer, assign_ranks

optuna = pytest.importorskip("optuna")

SPACE = {"x": {"low": 0.0, "high": 1.0}, "kind": {"choices": ["a", "b"]}}


def settings(**changes: Any) -> SearchSettings:
    return load(SearchSettings, None, {"metric": "loss", "search_space": SPACE, **changes})


def study_of(in_parallel: bool = False, **changes: Any) -> Any:
    return open_study(settings(**changes), in_parallel=in_parallel, lost=lambda *trial: None)


def test_the_sampler_and_the_pruner_are_those_of_the_settings():
    study = study_of(
        sampler={"class": "optuna.samplers:RandomSampler", "seed": 1},
        pruner={"class": "optuna.pruners:ThresholdPruner", "upper": 3.0},
    )
    assert isinstance(study.sampler, optuna.samplers.RandomSampler)
    assert isinstance(study.pruner, optuna.pruners.ThresholdPruner)
    for in_parallel in (False, True):
        sampler = study_of(in_parallel, seed=1).sampler
        assert isinstance(sampler, optuna.samplers.TPESampler)
        assert sampler._constant_liar == in_parallel, "trials at once are not drawn at one place"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"storage": "sqlite://"}, "storage and study_name go together"),
        ({"study_name": "a"}, "storage and study_name go together"),
        ({"sampler": "optuna.samplers:RandomSampler", "seed": 1}, "give it among sampler's own"),
        ({"sampler": "optuna.pruners:NopPruner"}, "makes a NopPruner"),
        ({"pruner": "optuna.pruners:MediumPruner"}, "MedianPruner"),
        ({"pruner": {"class": "optuna.pruners:MedianPruner", "n_startup": 1}}, "n_startup_trials"),
        ({"time_limit_seconds": 0}, "time_limit_seconds"),
        (
            {"storage": "postgresql://me:s3cret-word@nowhere.invalid/x", "study_name": "a"},
            "cannot be opened in postgresql://[redacted]@nowhere.invalid/x",
        ),
    ],
)
def test_settings_that_make_no_study_are_refused(changes: dict[str, Any], told: str):
    with pytest.raises(ConfigError) as raised:
        study_of(**changes)
    assert told in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_study_goes_on_only_with_what_it_is_about(tmp_path: Path):
    there = {"storage": f"sqlite:///{tmp_path}/study.db", "study_name": "shop"}
    first = study_of(seed=1, **there)
    trial = first.ask()
    for name, choice in settings().search_space.items():
        choice.draw(trial, name)
    first.tell(trial, 0.5)

    wider = {**SPACE, "x": {"low": -1.0, "high": 2.0}, "new": {"low": 1, "high": 2}}
    second = study_of(seed=1, **there, search_space=wider)
    assert [one.value for one in second.trials] == [0.5]
    again = second.ask()
    assert settings().search_space["x"].draw(again, "x") != trial.params["x"], "not drawn again"
    for changes, told in (
        ({"direction": "minimize"}, "was begun with 'maximize'"),
        ({"metric": "accuracy"}, "was begun with 'loss'"),
        ({"search_space": {**SPACE, "kind": {"choices": ["a"]}}}, "choices stay the same"),
        ({"search_space": {**SPACE, "x": {"choices": [1]}}}, "Give another study_name"),
    ):
        with pytest.raises(ConfigError, match=told):
            study_of(**there, **changes)


def test_a_storage_that_is_gone_in_the_middle_is_told(tmp_path: Path):
    file = tmp_path / "study.db"
    there = {"storage": f"sqlite:///{file}", "study_name": "shop"}
    study = study_of(**there)
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE trials")
    with (
        pytest.raises(RunnerError, match=r"has failed: .*below the MLflow run 0123.*goes on"),
        storage_must_answer(settings(**there), "0123"),
    ):
        study.ask()


def report_to(pruning: Pruning, *values: tuple[str, float, int]) -> None:
    pruning.progress(WORLD, {})
    if values:
        pruning.logged(WORLD, [["metric", name, value, 0, at, {}] for name, value, at in values])


class Gang:
    """Notes why it was ended."""

    def __init__(self, pruning: Pruning) -> None:
        self.reasons: list[str] = []
        pruning.begin(lambda world, reason: self.reasons.append(reason))


WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="h", address="127.0.0.1", interface="lo")],
    backend="torch",
    attempt=0,
)[0]


def test_a_trial_is_pruned_at_the_first_bad_value_of_its_metric():
    pruner = {"class": "optuna.pruners:ThresholdPruner", "upper": 3.0}
    study = study_of(direction="minimize", pruner=pruner)
    trial = study.ask()
    pruning = Pruning(trial, "loss")
    gang = Gang(pruning)
    report_to(pruning, ("other", 9.0, 0), ("loss", 2.0, 0))
    report_to(pruning, ("loss", 9.0, 0))  # The step of a second attempt.
    assert gang.reasons == []
    report_to(pruning, ("loss", 2.5, 1), ("loss", 4.0, 2), ("loss", 1.0, 3))
    assert gang.reasons == ["The trial was pruned at step 2: loss is 4."]
    assert pruning.pruned_at == 2
    assert study.trials[0].intermediate_values == {0: 2.0, 1: 2.5, 2: 4.0}


def test_a_trial_that_is_ended_before_its_ranks_report_ends_with_their_first_report():
    pruning = Pruning(study_of().ask(), "loss")
    pruning.end("enough")
    gang = Gang(pruning)
    assert gang.reasons == []
    report_to(pruning)
    assert gang.reasons == ["enough"]
    assert pruning.pruned_at is None


def test_a_study_that_cannot_be_asked_ends_the_trial_with_its_error():
    class Broken:
        def report(self, value: float, step: int) -> None:
            raise sqlite3.OperationalError("gone")

    pruning = Pruning(Broken(), "loss")
    gang = Gang(pruning)
    report_to(pruning, ("loss", 1.0, 0))
    assert isinstance(pruning.error, sqlite3.OperationalError)
    assert gang.reasons
    assert pruning.pruned_at is None
