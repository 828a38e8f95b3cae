"""A secret that only ``RunConfig(environment=...)`` holds is in nothing that a run shows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.base.redaction import HIDDEN, Redactor
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import mlflow_run
from sparkdl_runner.launch.driver.calls.chosen_place import ChosenPlace
from sparkdl_runner.launch.driver.mlflow_run import named_run, secrets_for_ranks, wanted_tracking
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run.opening import named
from sparkdl_runner.tracking.run.opening.changes import changes
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.tracking.run.tracked_run import TrackedRun

SECRET = "correct-horse-battery"
CONFIG = RunConfig(
    environment={"MY_API_KEY": SECRET, "PLAIN": "of-no-concern"},
    tracking=Tracking(run_name=f"with {SECRET}", tags={"note": SECRET, "MY_TOKEN": "abc"}),
    name="shop",
)
CALL: Any = SimpleNamespace(tags={"arguments": f"--key {SECRET}"}, place=ChosenPlace(), work=None)


@pytest.mark.parametrize("environment", [None, ["MY_*"], {"PLAIN": "of-no-concern"}])
def test_what_names_no_values_or_no_secret_adds_none(environment: Any) -> None:
    assert secrets_for_ranks(RunConfig(environment=environment).environment) == []


def test_name_and_tags_of_a_run_do_not_show_it() -> None:
    settings = wanted_tracking(CONFIG, CALL, RunName(text="f", source=f"{SECRET}.py"))
    assert settings is not None
    assert settings.run_name == f"with {HIDDEN}"
    assert settings.tags == {
        "mlflow.source.name": f"{HIDDEN}.py",
        "arguments": f"--key {HIDDEN}",
        "note": HIDDEN,
        "MY_TOKEN": HIDDEN,
    }


def test_runs_get_to_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def opened(_: object, __: object, secrets: list[str], name: RunName) -> Any:
        given.update(run=secrets, name=name.text)
        return SimpleNamespace(close=lambda *_: None)

    monkeypatch.setattr(TrackedRun, "open", opened)
    name = RunName(text=f"of {SECRET}")
    with mlflow_run.open_run(Tracking(), None, SimpleNamespace(reason=""), [SECRET], name):
        pass
    monkeypatch.setattr(named, "NamedRun", lambda *_, **more: given.update(named=more["secrets"]))
    named_run(CONFIG, Tracking(), CALL)
    assert given == {"run": [SECRET], "named": [SECRET], "name": f"of {HIDDEN}"}


def test_the_name_of_a_training_does_not_show_it() -> None:
    config = dataclasses.replace(CONFIG, name=f"of-{SECRET}")
    with pytest.raises(LaunchError, match="has the name 'of-redacted'") as raised:
        named_run(config, None, CALL)
    assert SECRET not in str(raised.value)


def test_what_a_call_asks_for_otherwise_does_not_show_it() -> None:
    params = {"key": f"with {HIDDEN}", "other": "1"}
    run = SimpleNamespace(data=SimpleNamespace(params=params))
    arguments = {"key": f"with {SECRET}", "other": SECRET}
    told = changes(run, arguments, {}, Redactor([SECRET]))
    assert told == [f"'other' was 1 and is now {HIDDEN}"]
