"""The executors that a cluster manager has given a place, on made-up managers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.launch.driver.spark import coming
from sparkdl_runner.launch.driver.spark.coming import coming_executors
from sparkdl_runner.launch.driver.spark.executors import Executor

YARN: Any = SimpleNamespace(master="yarn")
KUBERNETES: Any = SimpleNamespace(master="k8s://https://10.0.0.1:6443")


@pytest.fixture(autouse=True)
def _one_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [Executor(identifier="1", host="10.0.0.1", tasks=0)]
    monkeypatch.setattr(coming, "list_executors", lambda context: listed)


@pytest.mark.parametrize(("containers", "found"), [(3, 2), (1, 0), (0, 0), (-2, 0)])
def test_containers_of_yarn(monkeypatch, containers, found):
    monkeypatch.setattr(coming.yarn, "count_containers", lambda context: containers)
    assert coming_executors(YARN) == found


@pytest.mark.parametrize(("pods", "found"), [({"1", "2", "3"}, 2), ({"1"}, 0), (set(), 0)])
def test_pods(monkeypatch, pods, found):
    monkeypatch.setattr(coming.pods, "starting_executors", lambda context: pods)
    assert coming_executors(KUBERNETES) == found


def test_a_manager_that_refuses_has_none(monkeypatch):
    def refuse(context: object) -> int:
        raise RuntimeError("forbidden")

    monkeypatch.setattr(coming.yarn, "count_containers", refuse)
    assert coming_executors(YARN) == 0


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "local[2]", None])
def test_others_are_not_asked(master):
    assert coming_executors(SimpleNamespace(master=master)) == 0
