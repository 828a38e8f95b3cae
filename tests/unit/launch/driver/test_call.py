"""A call is checked, pickled, and asked for what it is made of."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import pytest

from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.launch.driver.calls.call import Call, check_call, pack
from sparkdl_runner.launch.driver.calls.ingredients import ingredients, refers_to
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.launch.wire import function

LOCK = threading.Lock()


def test_closures_lambdas_and_partials_travel():
    offset = 10

    def add(a, b):
        return a + b + offset

    assert function.call(pack(add, 1, b=2)) == 13
    assert function.call(pack(lambda a: a + offset, a=1)) == 11
    assert function.call(pack(functools.partial(add, 1), b=3)) == 14


def uses_global_lock():
    return LOCK


def helper():
    return uses_global_lock()


def uses_lock_in_a_comprehension():
    return [LOCK.locked() for _ in range(3)]


def takes_lock_by_default(*, lock=LOCK):
    return lock


def make_function_over_lock():
    guard = threading.Lock()

    def train():
        return guard

    return train


class Trainer:
    def __init__(self):
        self.guard = threading.Lock()

    def train(self):
        return self.guard


@dataclass
class Plan:
    steps: int
    model: object


# Functions of this module travel by name; these must travel by value, as a notebook's do.
def by_value(main):
    main.__module__ = "__main__"
    return main


@pytest.mark.parametrize(
    ("main", "args", "words"),
    [
        (make_function_over_lock(), (), "the enclosing function's variable 'guard'"),
        (by_value(uses_global_lock), (), "the global variable 'LOCK'"),
        (by_value(uses_lock_in_a_comprehension), (), "the global variable 'LOCK'"),
        (by_value(takes_lock_by_default), (), "a default argument"),
        (by_value(helper), (), "the global variable 'LOCK'"),
        (lambda data: data, (LOCK,), "the argument 'data'"),
        (functools.partial(lambda data: data, LOCK), (), "the argument 'data'"),
        (Trainer().train, (), "the attribute 'guard' of the method's object"),
        (lambda plan: plan, (Plan(1, LOCK),), "the field 'model' of the argument 'plan'"),
    ],
)
def test_what_cannot_be_pickled_is_named(main, args, words):
    with pytest.raises(NotPicklableError, match=words) as caught:
        pack(main, *args)
    assert "_thread.lock" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_by_position_have_the_names_that_the_function_gives_them():
    def train(data, *more, epochs=1):
        return data

    def named(main, *args, **kwargs):
        return [(words, value) for words, value in ingredients(main, *args, **kwargs)]

    assert named(train, 1, epochs=2)[:2] == [
        ("the argument 'data'", 1),
        ("the argument 'epochs'", 2),
    ]
    assert ("the argument 'more'", (2, 3)) in named(train, 1, 2, 3)
    assert named(functools.partial(train, 1), 2, 3)[:2] == [
        ("the argument 'more'", (2, 3)),
        ("the argument 'data'", 1),
    ]
    assert named(function.on_each_rank(train), 1)[0] == ("the argument 'data'", 1)
    assert named(max, 1, 2) == [("the argument '0'", 1), ("the argument '1'", 2)]


def test_a_function_whose_values_are_all_wanted_is_seen_through():
    main = function.on_each_rank(make_function_over_lock())
    with pytest.raises(NotPicklableError, match=r"train cannot be sent.*variable 'guard'"):
        pack(main)
    with pytest.raises(TypeError, match="train"):
        check_call(main, epochs=3)


def calls_json():
    import json.decoder

    return json.decoder


def calls_a_helper():
    return calls_json()


class CallsJson:
    def __call__(self):
        return calls_json()

    def method(self):
        return [calls_json() for _ in range(2)]


def over(helper):
    return lambda: helper()


def calls_itself():
    return calls_itself()


@pytest.mark.parametrize(
    "main",
    [
        calls_json,
        calls_a_helper,
        CallsJson(),
        CallsJson().method,
        over(calls_json),
        functools.partial(calls_a_helper),
        function.on_each_rank(calls_a_helper),
    ],
)
def test_the_packages_that_a_function_calls_are_known(main):
    assert refers_to(main, "json")
    assert not refers_to(main, "js")


@pytest.mark.parametrize("main", [calls_itself, len, pow, over(len), type, threading.Thread])
def test_what_calls_a_package_nowhere_does_not_refer_to_it(main):
    assert not refers_to(main, "json")


def logs_to_mlflow(rows, epochs=1):
    import mlflow

    mlflow.log_metric("epochs", epochs)


def test_a_call_answers_for_a_function():
    call = Call.of(logs_to_mlflow, ([1],), {})
    assert call.arguments == {"rows": [1], "epochs": 1}
    assert call.calls_mlflow
    assert call.work.function == f"{__name__}.logs_to_mlflow"
    assert (call.run_name, call.tags, call.conversions) == ("logs_to_mlflow", {}, {})


def test_a_call_answers_for_a_script(tmp_path):
    (tmp_path / "train.py").write_text("import mlflow.pytorch")
    call = Call.of(Script.find(tmp_path / "train.py", ["--epochs", "3"], travels=False), (), {})
    assert call.calls_mlflow
    assert (call.run_name, call.work.function) == ("train", "train.py")
    assert call.tags["sparkdl_runner.script_args"] == "--epochs 3"
