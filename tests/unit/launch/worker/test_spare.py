"""A spare worker is taken as long as what it has imported is what an import would find."""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path

import pytest

from sparkdl_runner.launch.worker import lifeline, spare
from sparkdl_runner.launch.worker.spare import _imported


def test_a_file_that_was_written_again_or_found_elsewhere_changes_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sparkdl_spare_example"
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "second" / f"{name}.py"
    file.write_text("number = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    importlib.import_module(name)
    try:
        before = _imported()
        assert before == _imported()
        files, origins = before
        assert origins[name] == str(file)
        assert str(file) in files
        (tmp_path / "first" / f"{name}.py").write_text("number = 2\n")
        assert _imported()[1][name] == str(tmp_path / "first" / f"{name}.py")
        (tmp_path / "first" / f"{name}.py").unlink()
        assert _imported() == before
        file.write_text("number = 10\n")
        assert _imported() != before
    finally:
        del sys.modules[name]


class Ended(Exception):  # noqa: N818
    """The process would have ended."""


class Agent:
    """The agent's end of the line, which has work with this environment; or none, or is gone."""

    def __init__(
        self,
        environment: dict[str, str] | None,
        *,
        is_gone: bool = False,
        waits: tuple[float, ...] = (),
    ) -> None:
        self._environment, self._is_gone = environment, is_gone
        self._waits = [60, *waits]
        self.told: list[object] = []

    def wait(self, seconds: float) -> bool:
        assert seconds == self._waits.pop(0)
        return self._is_gone or self._environment is not None

    def receive(self) -> tuple[dict[str, object], bytes]:
        if self._is_gone:
            raise EOFError
        if self._waits:
            return {"seconds": self._waits[0]}, b""
        return {"environment": dict(self._environment or {})}, b""

    def send_values(self, message: object) -> None:
        self.told.append(message)


OWN = {lifeline.FAMILY: "family", lifeline.FOLDER: "/own"}
STARTED_WITH = {**OWN, "A": "1", "B": "2", "GONE": "3"}


def environment_with(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, imports: list[object]
) -> dict[str, str]:
    """The environment of a spare that took the work; raises Ended for one that refused it.

    The spare's imports have changed B, deleted GONE and set NEW.
    """

    def end(guard_pid: int) -> None:
        assert guard_pid == 7
        raise Ended

    with monkeypatch.context() as patched:
        environment = {**OWN, "A": "1", "B": "by an import", "NEW": "by an import"}
        patched.setattr(os, "environ", environment)
        patched.setattr(spare, "_imported", lambda: imports.pop(0))
        patched.setattr(spare, "_end", end)
        spare.await_work(agent, 60, started_with=STARTED_WITH, guard_pid=7)
    return environment


def test_a_spare_has_the_environment_of_the_call_as_its_imports_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent({"A": "9", "B": "2", "GONE": "3", "C": "5", lifeline.FOLDER: "/of the agent"})
    found = environment_with(monkeypatch, agent, ["same", "same"])
    changed = {"B": "by an import", "NEW": "by an import"}
    assert found == {**OWN, "A": "9", "C": "5", **changed}
    assert agent.told == [{"fits": True}]


def test_a_spare_waits_for_as_long_as_its_agent_says_last(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent({"B": "2", "GONE": "3"}, waits=(math.inf, 30.0))
    environment_with(monkeypatch, agent, ["same", "same"])
    assert agent.told == [{"fits": True}]


@pytest.mark.parametrize(
    ("changes", "imports"),
    [
        ({"B": "7"}, ["same", "same"]),
        ({"NEW": "of the call"}, ["same", "same"]),
        ({"GONE": "4"}, ["same", "same"]),
        ({}, ["first", "second"]),
    ],
)
def test_a_spare_whose_imports_would_go_otherwise_now_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], imports: list[object]
) -> None:
    agent = Agent({"B": "2", "GONE": "3", **changes})
    with pytest.raises(Ended):
        environment_with(monkeypatch, agent, imports)
    assert agent.told == [{"fits": False}]


@pytest.mark.parametrize("agent", [Agent(None), Agent({}, is_gone=True)])
def test_a_spare_without_work_or_agent_ends(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    with pytest.raises(Ended):
        environment_with(monkeypatch, agent, ["same", "same"])
    assert agent.told == []
