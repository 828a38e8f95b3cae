"""A tag of the run asks a training to end; that of an earlier attempt does not."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sparkdl_runner.tracking import stop_tag
from sparkdl_runner.tracking.stop_tag import STOP_TAG, StopTag


class Client:
    """A run whose tag is set anew once it was deleted, as often as there are values."""

    tracking_uri = "http://h"

    def __init__(self, *values: str) -> None:
        self.values = list(values)
        self.looks = 0

    def get_run(self, run_id: str) -> SimpleNamespace:
        assert run_id == "r1"
        self.looks += 1
        return SimpleNamespace(
            data=SimpleNamespace(tags={STOP_TAG: self.values[0]} if self.values else {})
        )

    def delete_tag(self, run_id: str, tag: str) -> None:
        assert (run_id, tag) == ("r1", STOP_TAG)
        del self.values[0]


@pytest.fixture(autouse=True)
def _server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_tag, "why_unreachable", lambda uri: None)
    monkeypatch.setattr(stop_tag, "LOOK_SECONDS", 0.001)


def test_the_first_tag_after_the_start_stops_once() -> None:
    client, told, stopped = Client("earlier", "s" * 41, "late"), list[str](), threading.Event()

    def stop(reason: str) -> None:
        told.append(reason)
        stopped.set()

    with StopTag(client, "r1", stop) as watch:
        assert stopped.wait(120)
        watch._thread.join(120)
    assert told == [f"the run's tag sparkdl_runner.stop asks for it: {'s' * 40}"]
    assert client.values == ["late"]


def test_without_a_tag_it_looks_until_the_end() -> None:
    client = Client()
    with StopTag(client, "r1", pytest.fail) as watch:
        while client.looks < 3:
            threading.Event().wait(0.001)
    watch._thread.join(120)
    assert not watch._thread.is_alive()


def test_a_server_that_is_away_or_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("stop")
    watch = StopTag(client, "r1", pytest.fail)
    monkeypatch.setattr(client, "delete_tag", lambda *_: 1 / 0)
    assert watch._take() == ""
    monkeypatch.setattr(stop_tag, "why_unreachable", lambda uri: "it is away")
    assert watch._take() == ""
    assert client.looks == 1
