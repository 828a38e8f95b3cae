"""What ranks say reaches MLflow once, in order, whatever the server does meanwhile."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_module import replace_in
from sparkdl_runner.tracking.run import delivery as delivery_module
from sparkdl_runner.tracking.run import spool as spool_module
from sparkdl_runner.tracking.run.delivery import (
    MAX_METRICS,
    MAX_PARAMS,
    Delivery,
    RefusedError,
    ServerFailedError,
    ServerUnreachableError,
)
from sparkdl_runner.tracking.run.spool import Spool


def metric(step: int, name: str = "loss") -> list[Any]:
    return ["metric", name, 1.0 / (step + 1), 1000 + step, step, {}]


class Server:
    """Takes entries, but fails in turn as ``troubles`` says."""

    def __init__(self, troubles: list[bool] | None = None, refuses: str = "") -> None:
        self.took: list[list[Any]] = []
        self.sizes: list[int] = []
        self.is_down = False
        self._troubles = iter(troubles or [])
        self._refuses = refuses

    def log(self, entries: list[list[Any]]) -> None:
        if self.is_down or next(self._troubles, False):
            raise ServerUnreachableError("connection refused")
        if self._refuses and any(entry[1] == self._refuses for entry in entries):
            raise RefusedError("it is not liked")
        self.sizes.append(len(entries))
        self.took += entries


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(delivery_module, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(delivery_module, "MOST_PAUSE_SECONDS", 0.002)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool" / "run.jsonl")
    yield made
    made.close()


def test_all_is_delivered_in_order_and_the_file_goes(spool: Spool) -> None:
    server = Server()
    courier = Delivery(spool, server)
    said = [metric(step) for step in range(2500)]
    for start in range(0, 2500, 7):
        spool.put(said[start : start + 7])
    assert courier.close(120) == 0
    assert server.took == said
    assert max(server.sizes) <= MAX_METRICS
    assert not spool.path.exists()


def wait_for_trouble(courier: Delivery) -> None:
    deadline = time.monotonic() + 120
    while courier.trouble is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@settings(max_examples=30, deadline=None)
@given(
    batches=st.lists(st.integers(1, 300), max_size=12),
    troubles=st.lists(st.booleans(), max_size=20),
)
def test_every_entry_arrives_once_through_any_trouble(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], troubles: list[bool]
) -> None:
    server = Server(troubles)
    spool = Spool(tmp_path_factory.mktemp("spool") / "run.jsonl")
    courier = Delivery(spool, server)
    said: list[list[Any]] = []
    for size in batches:
        more = [metric(len(said) + index) for index in range(size)]
        said += more
        spool.put(more)
    assert courier.close(120) == 0
    assert server.took == said


def test_what_is_not_delivered_is_counted_and_comes_first_for_the_next_driver(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    server = Server()
    server.is_down = True
    spool = Spool(path)
    courier = Delivery(spool, server)
    spool.put([metric(1), metric(2)])
    wait_for_trouble(courier)
    assert courier.close(0.05) == 2
    assert courier.trouble == "connection refused"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    with path.open("ab") as file:
        file.write(b'["metric", "torn')  # The driver was killed while it wrote.
    server.is_down = False
    spool = Spool(path)
    spool.put([metric(3)])
    assert Delivery(spool, server).close(120) == 0
    assert server.took == [metric(1), metric(2), metric(3)]


def test_what_is_refused_is_named_and_holds_nothing_up(spool: Spool) -> None:
    server = Server(refuses="evil")
    courier = Delivery(spool, server)
    spool.put([metric(1), metric(2, "evil"), metric(3), metric(4, "evil"), metric(5)])
    assert courier.close(120) == 0
    assert [entry[4] for entry in server.took] == [1, 3, 5]
    assert len(courier.refused) == 2
    assert "the metric 'evil': it is not liked" in courier.refused


def test_an_entry_at_which_the_server_stumbles_is_given_up_and_others_get_through(
    spool: Spool,
) -> None:
    class Stumbling(Server):
        def log(self, entries: list[list[Any]]) -> None:
            if any(entry[1] == "evil" for entry in entries):
                raise ServerFailedError("HTTP 500")
            super().log(entries)

    server = Stumbling()
    courier = Delivery(spool, server)
    spool.put([metric(1), metric(2, "evil"), metric(3, "evil"), metric(4), metric(5)])
    assert courier.close(120) == 0
    assert [entry[4] for entry in server.took] == [1, 4, 5]
    assert courier.refused == ["the metric 'evil': HTTP 500"] * 2


def test_a_server_that_fails_at_everything_loses_nothing(spool: Spool) -> None:
    """However long it does: nothing is given up where nothing else gets through."""

    class Failing(Server):
        tries = 0

        def log(self, entries: list[list[Any]]) -> None:
            self.tries += 1
            if self.tries < 200:
                raise ServerFailedError("HTTP 500")
            super().log(entries)

    server = Failing()
    said = [metric(step) for step in range(30)]
    spool.put(said)
    courier = Delivery(spool, server)
    assert courier.close(120) == 0
    assert sorted(server.took) == sorted(said)
    assert courier.refused == []


def test_an_unexpected_error_is_not_the_last_delivery(spool: Spool) -> None:
    errors = [RuntimeError("what is that?")]

    class Odd(Server):
        def log(self, entries: list[list[Any]]) -> None:
            if errors:
                raise errors.pop()
            super().log(entries)

    server = Odd()
    spool.put([metric(1)])
    assert Delivery(spool, server).close(120) == 0
    assert server.took == [metric(1)]


def test_parameters_are_few_at_a_time_and_may_be_long(spool: Spool) -> None:
    server = Server()
    said = [["param", f"p{index}", "x" * 6000] for index in range(250)]
    spool.put(said)
    courier = Delivery(spool, server)
    assert courier.close(120) == 0
    assert server.took == said
    assert max(server.sizes) <= MAX_PARAMS


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "run.jsonl")
    spool.put([metric(1)])

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        replace_in(patch, spool_module, "os", write=full)
        spool.put([metric(2)])
    spool.put([metric(3)])
    assert "No space left" in str(spool.problem)
    server = Server()
    assert Delivery(spool, server).close(120) == 0
    assert server.took == [metric(1), metric(2), metric(3)]


def test_trouble_is_known_while_it_lasts(spool: Spool) -> None:
    server = Server()
    server.is_down = True
    courier = Delivery(spool, server)
    spool.put([metric(1)])
    wait_for_trouble(courier)
    assert courier.troubled_since is not None
    server.is_down = False
    assert courier.flush(120)
    courier.close(120)
    assert courier.trouble is None
