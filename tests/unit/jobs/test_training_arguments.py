"""Hyperparameters that a training function cannot take are refused before it starts."""

from __future__ import annotations

import pytest

from sparkdl_runner.errors import ConfigError, LaunchError
from sparkdl_runner.jobs.spark import session
from sparkdl_runner.jobs.training.arguments import check_kinds


def train(
    epochs: int, rate: float = 0.1, momentum=1, name: str = "", extra=None, deep: bool = True
):
    pass


def optional(epochs: int | None = None, quiet=False, sizes: list[int] | None = None):
    pass


@pytest.mark.parametrize(
    ("main", "given", "words"),
    [
        (train, {"epochs": "abc"}, "'abc'; m:f takes a whole number there (epochs: 'int')."),
        (train, {"epochs": 1.5}, "is 1.5; m:f takes a whole number"),
        (train, {"epochs": True}, "is True; m:f takes a whole number"),
        (train, {"rate": False}, "is False; m:f takes a number"),
        (train, {"rate": [1]}, "takes a number there (rate: 'float' = 0.1)."),
        (train, {"momentum": "o.9"}, "takes a number there (momentum=1)."),
        (train, {"deep": "maybe"}, "takes true or false there (deep: 'bool' = True)."),
        (optional, {"epochs": "3 "}, "takes a whole number"),
        (optional, {"quiet": "no?"}, "takes true or false there (quiet=False)."),
    ],
)
def test_a_value_of_another_kind_is_refused(main, given, words):
    with pytest.raises(ConfigError) as raised:
        check_kinds(main, given, "m:f")
    assert str(raised.value).startswith(f"hyperparameters.{next(iter(given))} is ")
    assert words in str(raised.value)


def test_what_fits_or_is_not_certain_passes():
    check_kinds(train, {"epochs": 3, "rate": 1, "momentum": 0.9, "name": 5}, "m:f")
    check_kinds(train, {"deep": False, "unknown": "x"}, "m:f")
    check_kinds(optional, {"epochs": None, "sizes": "x", "quiet": True}, "m:f")
    check_kinds(lambda **anything: None, {"epochs": "abc"}, "m:f")


def test_more_ranks_than_this_machine_could_start_are_refused_at_once(monkeypatch):
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "DATABRICKS_RUNTIME_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "running_context", lambda: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(LaunchError, match=r"64 ranks .* 2 cores .* at most 8 .*spark-submit"):
        session.start_spark("x", slots=64)
