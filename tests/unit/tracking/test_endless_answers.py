"""Servers that drip, or whose answers never end: a driver waits and reads only so much."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sparkdl_runner.driver.spark import asked
from sparkdl_runner.tracking.run import server
from sparkdl_runner.tracking.run.server import (
    RefusedError,
    ServerFailedError,
    TrackingServer,
    why_unreachable,
)

MOST_BYTES = 64 << 20


class Hostile:
    """Sends a beginning, then the same piece again and again, until the other side is gone."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.beginning, self.piece, self.pause_seconds = b"HTTP/1.1 200 OK\r\n", b"", 0.0
        self.sent_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(self.beginning)
                while not self._is_over.wait(self.pause_seconds) and self.sent_bytes < MOST_BYTES:
                    connection.sendall(self.piece)
                    self.sent_bytes += len(self.piece)

    def close(self) -> None:
        self._is_over.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    made = Hostile()
    yield made
    made.close()
    for thread in threading.enumerate():
        if thread.name == "sparkdl-mlflow-call":  # It ends with the connection.
            thread.join(10)


def drip(hostile: Hostile) -> None:
    hostile.piece, hostile.pause_seconds = b"X", 0.02


@pytest.mark.parametrize("status", ["200 OK", "302 Found\r\nLocation: /health", "401 Not you"])
def test_an_endless_body_is_not_read(hostile: Hostile, status: str) -> None:
    hostile.beginning = f"HTTP/1.1 {status}\r\n\r\n".encode()
    hostile.piece = bytes(1 << 20)
    assert why_unreachable(hostile.uri, 5) is None
    hostile.close()
    assert hostile.sent_bytes < MOST_BYTES / 4  # What a socket holds, and no more.


def test_a_head_that_drips_is_waited_for_in_all_and_not_byte_by_byte(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GRACE_SECONDS", 0.0)
    drip(hostile)
    told = why_unreachable(hostile.uri, 0.2)
    assert told is not None
    assert told.endswith("does not answer: timed out, no complete HTTP header came within 0.2 s")


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
    monkeypatch.setattr(server, "_ANSWER_SECONDS", 0.2)
    drip(hostile)
    with pytest.raises(ServerFailedError, match="no whole answer in"):
        TrackingServer(hostile.uri, "r1").log([["tag", "a", "b"]])


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_masters_page_that_drips_is_no_page(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    hostile.beginning = beginning
    drip(hostile)
    monkeypatch.setattr(asked, "_PAGE_SECONDS", 0.2)
    assert asked._workers("spark://127.0.0.1:7077", hostile.port) == []
