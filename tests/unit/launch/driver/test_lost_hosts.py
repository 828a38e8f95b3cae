"""The executors that Spark is told to give up after a host has vanished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ports import closed_port
from sparkdl_runner.launch.driver.spark import lost_hosts
from sparkdl_runner.launch.driver.spark.executors import Executor
from sparkdl_runner.launch.driver.spark.lost_hosts import LostHosts
from sparkdl_runner.launch.wire import network
from sparkdl_runner.rank.world import World


def a_world(host: str, address: str) -> World:
    sizes = dict.fromkeys(["rank", "local_rank", "cross_rank"], 0)
    sizes |= dict.fromkeys(["size", "local_size", "cross_size"], 1)
    names = {"host": host, "host_id": host, "interface": "eth0", "backend": "torch"}
    return World(address=address, **sizes, **names)


def a_context(master: str, give_up: Callable[[str], object]) -> Any:
    spark = SimpleNamespace(killAndReplaceExecutor=give_up)
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark), master=master)


def test_executors_of_a_lost_host_go_once_and_those_that_came_back_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up: list[str] = []
    context = a_context("yarn", give_up=given_up.append)
    hosts = ["10.0.0.1", "10.1.0.1", "10.0.0.2", "unknown", "10.0.0.3", "127.0.0.1"]
    listed = [Executor(identifier=host, host=host, tasks=0) for host in hosts]
    monkeypatch.setattr(lost_hosts, "list_executors", lambda _: listed)
    monkeypatch.setattr(lost_hosts.yarn, "replace_master", lambda context, is_lost: False)
    monkeypatch.setattr(network, "resolve", lambda host: {"unknown": None}.get(host, host))
    replaced: list[str] = []
    monkeypatch.setattr(lost_hosts, "replace_pods", lambda _, names: replaced.extend(names))
    lost = LostHosts(context)
    lost.replace_executors()
    assert given_up == []
    lost.add(a_world("first", "10.0.0.1"), ["127.0.0.1", "10.1.0.1"])
    assert lost.replace_executors() == lost_hosts.REPLACEMENT_SECONDS
    assert given_up == ["10.0.0.1", "10.1.0.1"]
    told = capsys.readouterr().err
    assert "host first (10.0.0.1) has vanished: its slots do not count any more." in told
    assert "asked for other executors in place of 10.0.0.1, 10.1.0.1: its cluster manager" in told
    lost.replace_executors()
    lost.add(a_world("second", "10.0.0.2"), [])
    lost.replace_executors()
    assert given_up == ["10.0.0.1", "10.1.0.1", "10.0.0.2"]
    assert capsys.readouterr().err.count("vanished") == 1
    assert replaced == given_up


def test_an_executor_that_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[str] = []
    context = a_context("yarn", give_up=given_up.append)
    monkeypatch.setattr(lost_hosts.yarn, "replace_master", lambda context, is_lost: False)
    monkeypatch.setattr(network, "is_loopback", lambda address: False)
    with network.listen("127.0.0.1") as there, closed_port() as gone:
        listed = [
            Executor(identifier=str(port), host="127.0.0.1", port=port, tasks=0)
            for port in (there.getsockname()[1], gone)
        ]
        monkeypatch.setattr(lost_hosts, "list_executors", lambda _: listed)
        lost = LostHosts(context)
        lost.add(a_world("here", "127.0.0.1"), [])
        assert lost.replace_executors() == lost_hosts.REPLACEMENT_SECONDS
    assert given_up == [str(gone)]


def test_executors_that_were_never_heard_of_are_replaced_unless_they_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given_up: list[str] = []
    context = a_context("k8s://https://h", give_up=given_up.append)
    asked: list[object] = []
    monkeypatch.setattr(
        lost_hosts.yarn, "replace_master", lambda *arguments: asked.append(arguments)
    )
    monkeypatch.setattr(lost_hosts, "replace_pods", lambda _, names: replaced.extend(names))
    replaced: list[str] = []
    with network.listen("127.0.0.1") as there, closed_port() as gone:
        ports = {"1": there.getsockname()[1], "2": gone, "3": gone}
        listed = [
            Executor(identifier=name, host="127.0.0.1", port=port, tasks=0)
            for name, port in ports.items()
        ]
        monkeypatch.setattr(lost_hosts, "list_executors", lambda _: listed)
        lost = LostHosts(context)
        lost.add_executors(["1", "2", "no longer listed"])
        assert lost.replace_executors() == lost_hosts.REPLACEMENT_SECONDS
    assert given_up == replaced == ["2", "no longer listed"]
    assert asked == []
    assert "vanished" not in capsys.readouterr().err
    assert lost.replace_executors() == 0


def test_a_manager_that_does_not_answer_is_waited_for_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    context = a_context("yarn", give_up=lambda one: never.wait())
    monkeypatch.setattr(lost_hosts, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(lost_hosts.yarn, "replace_master", lambda context, is_lost: never.wait())
    monkeypatch.setattr(
        lost_hosts,
        "list_executors",
        lambda _: [Executor(identifier="1", host="10.0.0.1", tasks=0)],
    )
    lost = LostHosts(context)
    lost.add(a_world("first", "10.0.0.1"), [])
    lost.replace_executors()  # It would never return.
    never.set()
    for thread in threading.enumerate():
        if thread.name == "sparkdl-asking":
            thread.join()


def test_executors_that_go_with_their_master_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [["1", "2"], ["1", "2"], ["2"], ["3"]]
    asked: list[bool] = []

    def listed(_: object) -> list[Executor]:
        return [Executor(identifier=one, host="10.0.0.1", tasks=0) for one in looks.pop(0)]

    def replace_master(context: object, is_lost: Callable[[str], bool]) -> bool:
        asked.append(is_lost("10.0.0.1"))
        return True

    monkeypatch.setattr(lost_hosts, "list_executors", listed)
    monkeypatch.setattr(lost_hosts, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(lost_hosts.yarn, "replace_master", replace_master)
    lost = LostHosts(SimpleNamespace(master="yarn"))
    lost.add(a_world("first", "10.0.0.1"), [])
    assert lost.replace_executors() == lost_hosts.REPLACEMENT_SECONDS
    assert asked == [True]
    assert looks == []


def test_where_the_session_has_ended_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: object) -> list[Executor]:
        raise RuntimeError("the session was stopped")

    monkeypatch.setattr(lost_hosts, "list_executors", ended)
    lost = LostHosts(SimpleNamespace(master="yarn"))
    lost.add(a_world("first", "10.0.0.1"), [])
    assert lost.replace_executors() == 0.0
