from __future__ import annotations

import ipaddress
import platform
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.base.version import __version__
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect import package, probe
from sparkdl_runner.launch.driver.connect.probe_task import ProbeTask
from sparkdl_runner.launch.driver.stop_request import StopRequest

HERE, THERE = ["127.0.0.1", 4001], ["10.0.0.7", 4002]
ROW = {
    "host": "one",
    "cpus": 1,
    "python": platform.python_version(),
    "spark": "4.3.0",
    "package": __version__,
    "missing": [],
    "reached": [HERE, THERE],
}


class Session:
    """Answers for what was set."""

    def __init__(self, **settings: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in settings.items()}
        self.is_stopped = False


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr(probe, "_known", weakref.WeakKeyDictionary())


def found(monkeypatch, *answers: list[dict[str, Any]], session: Session | None = None):
    """What the probe finds, where executors answer so, once or after the package was sent."""
    waiting = list(answers)
    monkeypatch.setattr(probe, "_ask", lambda *_: waiting.pop(0))
    return probe.known(session or Session(), RunConfig(), ["torch"], StopRequest())


def test_slots_and_the_first_address_that_all_executors_reach(monkeypatch):
    rows = [ROW, {**ROW, "host": "two", "reached": [THERE]}]
    surroundings = found(monkeypatch, rows)
    assert (surroundings.slots, surroundings.address) == (2, "10.0.0.7")
    assert not surroundings.is_single_host
    assert found(monkeypatch, [ROW] * 3).is_single_host


def test_no_address_is_found_where_one_executor_reaches_none(monkeypatch):
    assert found(monkeypatch, [ROW, {**ROW, "reached": []}]).address is None


def test_tasks_of_two_cores_are_half_as_many(monkeypatch):
    assert found(monkeypatch, [{**ROW, "cpus": 2}] * 4).slots == 2


def test_slots_are_unknown_where_a_setting_says_how_many_partitions_there_are(monkeypatch):
    session = Session(spark_default_parallelism="7")
    assert found(monkeypatch, [ROW] * 7, session=session).slots is None


def test_a_session_is_asked_once(monkeypatch):
    session = Session()
    first = found(monkeypatch, [ROW], session=session)
    assert found(monkeypatch, session=session) is first


def test_the_package_is_sent_where_it_is_missing(monkeypatch):
    sent: list[object] = []
    monkeypatch.setattr(package, "send", sent.append)
    found(monkeypatch, [ROW, {**ROW, "package": None}], [ROW, ROW])
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"python": "3.7.1"}, r"host two has Python 3.7.1, and this client \d.* Use Python 3.7 "),
        ({"missing": ["psutil", "torch"]}, r"host two lacks psutil, torch, which ranks need: inst"),
        ({"package": "0.0.1"}, r"host two has sparkdl_runner 0.0.1, and this client .*: install"),
    ],
)
def test_executors_that_do_not_fit_are_one_sentence(monkeypatch, other, sentence):
    monkeypatch.setattr(package, "send", lambda session: None)
    rows = [ROW, {**ROW, "host": "two", **other}]
    with pytest.raises(LaunchError, match=sentence):
        found(monkeypatch, rows, rows)


def test_a_server_that_is_lost_before_anything_ran_is_a_launch_error(monkeypatch):
    def lose(*_):
        raise RunnerError("it does not answer")

    monkeypatch.setattr(probe, "_ask", lose)
    with pytest.raises(LaunchError, match="it does not answer"):
        probe.known(Session(), RunConfig(), [], StopRequest())
    with pytest.raises(RunnerError) as caught:
        probe.probe(Session(), RunConfig(), [], StopRequest())
    assert type(caught.value) is RunnerError, "between two attempts it is worth another"


@pytest.mark.parametrize("endpoint", ["localhost:15002", "192.0.2.7:15002", "no.such.invalid"])
def test_this_client_listens_on_single_addresses(endpoint):
    client = SimpleNamespace(_builder=SimpleNamespace(endpoint=endpoint))
    addresses = probe._own_addresses(SimpleNamespace(client=client), RunConfig())
    assert (addresses[:1] == ["127.0.0.1"]) == endpoint.startswith("localhost")
    assert not any(ipaddress.ip_address(one).is_unspecified for one in addresses)


def test_a_task_reaches_the_client_and_no_other_listener_there():
    token = b"0123456789abcdef"
    with probe._listening(["127.0.0.1"], None, token) as addresses:
        for said, reached in ((token, True), (b"another listener", False)):
            task = ProbeTask(addresses=addresses, token=said, modules=(), package="sparkdl_runner")
            assert task._reaches(*addresses[0]) is reached
    assert not task._reaches(*addresses[0])
    assert task._version() == __version__
