"""The store and the experiment that a function or a script chooses, as its source tells them."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest

from sparkdl_runner.launch.driver.calls.chosen_place import ChosenPlace, chosen_place
from sparkdl_runner.launch.driver.mlflow_run import at_place
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.tracking import Tracking

mlflow: Any = None
set_experiment: Any = None
NAME = "of the module"


def by_text():
    mlflow.set_experiment("digits")


def by_name():
    set_experiment(experiment_name=NAME)


def by_argument(epochs, experiment="by default"):
    mlflow.set_experiment(experiment)


def by_variable():
    name = "in a variable"
    mlflow.set_experiment(name)


def by_helper():
    by_text()


def on_rank_zero(rank):
    if rank == 0:
        mlflow.set_experiment("digits")


def closed_over(name):
    def train():
        mlflow.set_experiment(name)

    return train


def is_set_later(experiment):
    experiment = experiment.upper()
    mlflow.set_experiment(experiment)


def on_a_condition(debug):
    if debug:
        mlflow.set_experiment("debug")


def two():
    mlflow.set_experiment("one")
    mlflow.set_experiment("other")


def by_id():
    mlflow.set_experiment(experiment_id="7")


def none():
    mlflow.log_metric("loss", 1.0)


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (by_text, {}, "digits"),
        (by_name, {}, NAME),
        (by_argument, {"experiment": "given"}, "given"),
        (by_argument, {}, "by default"),
        (partial(by_argument, 3), {"experiment": "given"}, "given"),
        (by_variable, {}, "in a variable"),
        (by_helper, {}, "digits"),
        (on_rank_zero, {"rank": 0}, "digits"),
        (closed_over("enclosed"), {}, "enclosed"),
        (is_set_later, {"experiment": "given"}, None),
        (by_argument, {"experiment": 7}, None),
        (on_a_condition, {"debug": False}, None),
        (two, {}, None),
        (by_id, {}, None),
        (none, {}, None),
        (len, {}, None),
        (eval("lambda: mlflow.set_experiment('no source')"), {}, None),
    ],
)
def test_of_a_function(main, arguments, expected):
    assert chosen_place(main, arguments) == ChosenPlace(experiment=expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import mlflow\nNAME = 'digits'\nmlflow.set_experiment(NAME)", "digits"),
        ("def main():\n    mlflow.set_experiment('digits')\nmain()", "digits"),
        ("if __name__ == '__main__':\n    mlflow.set_experiment('digits')", "digits"),
        ("mlflow.set_experiment(args.experiment)", None),
        ("for name in names:\n    mlflow.set_experiment(name)", None),
    ],
)
def test_of_a_script(tmp_path, source, expected):
    (tmp_path / "train.py").write_text(source)
    script = Script.find(tmp_path / "train.py", travels=False)
    assert chosen_place(script, {}) == ChosenPlace(experiment=expected)


def in_a_store(uri="http://elsewhere"):
    mlflow.set_tracking_uri(uri=uri)
    mlflow.set_experiment("digits")


def in_two_stores():
    mlflow.set_tracking_uri("http://one")
    mlflow.set_tracking_uri("http://other")
    mlflow.set_experiment("digits")


def in_a_store_of_its_own_credentials(token):
    os.environ["MLFLOW_TRACKING_TOKEN"] = token
    in_a_store()


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (in_a_store, {}, ChosenPlace(tracking_uri="http://elsewhere", experiment="digits")),
        (in_a_store, {"uri": "db"}, ChosenPlace(tracking_uri="db", experiment="digits")),
        (in_a_store, {"uri": None}, ChosenPlace()),
        (in_two_stores, {}, ChosenPlace()),
        (in_a_store_of_its_own_credentials, {"token": "t"}, ChosenPlace()),
    ],
)
def test_of_a_function_with_a_store(main, arguments, expected):
    assert chosen_place(main, arguments) == expected


PLACE = ChosenPlace(tracking_uri="http://chosen", experiment="digits")


@pytest.mark.parametrize(
    ("given", "place", "expected"),
    [
        (Tracking(), PLACE, ("http://chosen", "digits")),
        (Tracking(experiment="mine"), PLACE, ("http://chosen", "mine")),
        (Tracking(tracking_uri="http://chosen"), PLACE, ("http://chosen", "digits")),
        (Tracking(tracking_uri="http://mine"), PLACE, ("http://mine", None)),
        (Tracking(run_id="1"), PLACE, (None, None)),
        (Tracking(tracking_uri="db"), ChosenPlace(experiment="digits"), ("db", "digits")),
    ],
)
def test_what_tracking_names_comes_first(given, place, expected):
    found = at_place(given, place)
    assert (found.tracking_uri, found.experiment) == expected
