"""The experiment that a function or a script chooses, as its source tells it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sparkdl_runner.launch.driver.calls.chosen_experiment import chosen_experiment
from sparkdl_runner.launch.script.script import Script

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


def in_another_store():
    mlflow.set_tracking_uri("http://elsewhere")
    mlflow.set_experiment("digits")


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
        (in_another_store, {}, None),
        (none, {}, None),
        (len, {}, None),
        (eval("lambda: mlflow.set_experiment('no source')"), {}, None),
    ],
)
def test_of_a_function(main, arguments, expected):
    assert chosen_experiment(main, arguments) == expected


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
    assert chosen_experiment(script, {}) == expected
