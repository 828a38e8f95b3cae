"""The executors that Spark is told to give up after a host has vanished."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.driver.spark import lost_hosts
from sparkdl_runner.driver.spark.executors import Executor
from sparkdl_runner.driver.spark.lost_hosts import LostHosts
from sparkdl_runner.wire import network
from sparkdl_runner.world import World


def a_world(host: str, address: str) -> World:
    sizes = dict.fromkeys(["rank", "local_rank", "cross_rank"], 0)
    sizes |= dict.fromkeys(["size", "local_size", "cross_size"], 1)
    names = {"host": host, "host_id": host, "interface": "eth0", "backend": "torch"}
    return World(address=address, **sizes, **names)


def test_executors_of_a_lost_host_go_once_and_those_that_came_back_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up: list[str] = []
    spark = SimpleNamespace(killAndReplaceExecutor=given_up.append)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark))
    hosts = ["10.0.0.1", "10.1.0.1", "10.0.0.2", "unknown", "10.0.0.3", "127.0.0.1"]
    listed = [Executor(identifier=host, host=host, tasks=0) for host in hosts]
    monkeypatch.setattr(lost_hosts, "list_executors", lambda _: listed)
    monkeypatch.setattr(network, "resolve", lambda host: {"unknown": None}.get(host, host))
    lost = LostHosts(context)
    lost.leave_out()
    assert given_up == []
    lost.add(a_world("first", "10.0.0.1"), ["127.0.0.1", "10.1.0.1"])
    lost.leave_out()
    assert given_up == ["10.0.0.1", "10.1.0.1"]
    assert capsys.readouterr().err == (
        "sparkdl_runner: host first (10.0.0.1) has vanished: its slots do not count until Spark "
        "has new executors there.\n"
    )
    lost.leave_out()
    lost.add(a_world("second", "10.0.0.2"), [])
    lost.leave_out()
    assert given_up == ["10.0.0.1", "10.1.0.1", "10.0.0.2"]
    assert capsys.readouterr().err.count("vanished") == 1
