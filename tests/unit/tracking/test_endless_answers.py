"""Servers that drip, or whose answers never end: a driver waits and reads only so much."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hostile_server import MOST_BYTES, Hostile
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark import asked
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run import delivery, server
from sparkdl_runner.tracking.run.delivery import RefusedError, ServerFailedError, TrackingServer
from sparkdl_runner.tracking.run.opening import store
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.opening.opened import open_run
from sparkdl_runner.tracking.run.server import why_unreachable


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    made = Hostile()
    yield made
    made.close()
    for thread in threading.enumerate():
        if thread.name == "sparkdl-mlflow-call":  # It ends with the connection.
            thread.join(120)


def drip(hostile: Hostile) -> None:
    hostile.piece, hostile.pause_seconds = b"X", 0.02


@pytest.mark.parametrize("status", ["200 OK", "302 Found\r\nLocation: /health", "401 Not you"])
def test_an_endless_body_is_not_read(hostile: Hostile, status: str) -> None:
    hostile.beginning = f"HTTP/1.1 {status}\r\n\r\n".encode()
    hostile.piece = bytes(1 << 20)
    assert why_unreachable(hostile.uri, 120) is None
    hostile.close()
    assert hostile.sent_bytes < MOST_BYTES / 4  # What a socket holds, and no more.


def test_a_head_that_drips_is_waited_for_in_all_and_not_byte_by_byte(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit of requests begins anew with each byte: it is long, and only ours is short.
    monkeypatch.setattr(server, "_GRACE_SECONDS", 0.2 - 120.0)
    drip(hostile)
    told = why_unreachable(hostile.uri, 120.0)
    assert told is not None
    assert told.endswith("does not answer: timed out, no complete HTTP header came within 120 s")


def test_of_a_refusal_that_never_ends_the_beginning_is_read(hostile: Hostile) -> None:
    hostile.beginning = b"HTTP/1.1 400 Bad\r\n\r\nno such run "
    hostile.piece = b"x" * (1 << 20)
    with pytest.raises(RefusedError, match=r"^HTTP 400: no such run x*$") as raised:
        TrackingServer(hostile.uri, "r1").log([["tag", "a", "b"]])
    assert len(str(raised.value)) < 600
    hostile.close()
    assert hostile.sent_bytes < MOST_BYTES / 4


def test_an_answer_to_entries_that_drips_is_a_failure_of_the_server(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_ANSWER_SECONDS", 0.2)
    drip(hostile)
    with pytest.raises(ServerFailedError, match="no whole answer in"):
        TrackingServer(hostile.uri, "r1").log([["tag", "a", "b"]])


@pytest.mark.parametrize("settings", [{"experiment": "shop"}, {"run_id": "a1"}])
def test_mlflows_own_client_is_waited_for_in_all_when_a_run_is_opened(
    hostile: Hostile, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    hostile.beginning = b"HTTP/1.1 200 OK\r\n\r\n"  # So that it looks healthy.
    monkeypatch.setattr(store, "why_unreachable", lambda uri, _: why_unreachable(uri, 120))
    drip(hostile)
    tracking = Tracking(tracking_uri=hostile.uri, opening_timeout_seconds=1, **settings)
    with pytest.raises(LaunchError, match=r"gave no answer within 1 s when it was to"):
        open_run(tracking, Lease())  # Byte by byte, it would wait for ever.


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_masters_page_that_drips_is_no_page(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    hostile.beginning = beginning
    drip(hostile)
    monkeypatch.setattr(asked, "_PAGE_SECONDS", 0.2)
    assert asked._workers("spark://127.0.0.1:7077", hostile.port) == []


def test_a_masters_page_that_is_nested_too_deeply_is_no_page(hostile: Hostile) -> None:
    hostile.beginning, hostile.piece = b"HTTP/1.1 200 OK\r\n\r\n", b"[" * (1 << 16)
    assert asked._workers("spark://127.0.0.1:7077", hostile.port) == []


def test_a_masters_page_of_other_values_is_no_page(hostile: Hostile) -> None:
    page = b'{"workers": [{"state": "ALIVE", "cores": 1, "memory": 1, "resources": null}]}'
    hostile.beginning = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    assert asked._workers("spark://127.0.0.1:7077", hostile.port) == []
