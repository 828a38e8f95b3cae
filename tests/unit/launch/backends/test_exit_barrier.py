from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading

import pytest

from ports import closed_port
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.backends import exit_barrier
from sparkdl_runner.launch.backends.exit_barrier import ExitBarrier, enter_exit_barrier
from sparkdl_runner.launch.wire import network

SECRET = "secret"


@pytest.fixture(autouse=True)
def _is_patient(monkeypatch):
    monkeypatch.setattr(exit_barrier, "HELLO_SECONDS", 120.0)
    monkeypatch.setattr(exit_barrier, "CONNECT_SECONDS", 120.0)


@contextlib.contextmanager
def waiting_for(num_others, peers=("127.0.0.1",)):
    """Yields where to go, and what is set once all others have gone."""
    all_left = threading.Event()
    server = ExitBarrier(
        network.listen("127.0.0.1"), frozenset(peers), num_others, SECRET, all_left.set
    )
    server.start()
    try:
        yield server.address, all_left
    finally:
        server.close()


def leave(connection):
    """Says that the rank has ended, and waits until the server has done with the connection."""
    with connection:
        connection.settimeout(120)
        with contextlib.suppress(OSError):  # The server may have closed it already.
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""


def test_all_others_must_have_come_and_gone():
    with waiting_for(2) as (address, all_left):
        first, second = (enter_exit_barrier(*address, partition, SECRET) for partition in (1, 2))
        leave(first)
        leave(enter_exit_barrier(*address, 1, SECRET))  # No more than a rank can end.
        assert not all_left.is_set()
        # A host that is gone resets its connections.
        second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        second.close()
        assert all_left.wait(120)


def test_a_rank_alone_waits_for_nobody():
    with waiting_for(0) as (_, all_left):
        assert all_left.wait(120)


@pytest.mark.parametrize("partition", [b"", b"\0\0", b"\0\0\0\0", b"\0\0\0\2", b"\xff" * 4])
def test_what_is_no_other_rank_does_not_count(partition):
    with waiting_for(1) as (address, all_left):
        connection = socket.create_connection(address, timeout=120)
        connection.sendall(SECRET.encode() + partition)
        leave(connection)
        assert not all_left.is_set()


@pytest.mark.parametrize("secret", ["", "secreT", "secre", "secret2"])
def test_who_does_not_know_the_secret_does_not_count(secret):
    with waiting_for(1) as (address, all_left):
        leave(enter_exit_barrier(*address, 1, secret))
        assert not all_left.is_set()


def test_strangers_do_not_count():
    with waiting_for(1, peers=["192.0.2.7"]) as (address, all_left):
        leave(enter_exit_barrier(*address, 1, SECRET))
        assert not all_left.is_set()


def test_a_way_to_rank_0_that_is_found_a_moment_later_is_taken(monkeypatch):
    real, answers = socket.create_connection, [OSError(errno.EHOSTUNREACH, "No route to host")]

    def connect(*arguments):
        if answers:
            raise answers.pop()
        return real(*arguments)

    monkeypatch.setattr(exit_barrier, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(exit_barrier.socket, "create_connection", connect)
    with network.listen("127.0.0.1") as listener:
        enter_exit_barrier(*listener.getsockname(), 1, SECRET).close()
    assert not answers


def test_a_rank_0_that_cannot_be_reached_is_named():
    with closed_port() as port:
        sentence = rf"cannot reach rank 0 at 127\.0\.0\.1:{port}"
        with pytest.raises(RunnerError, match=sentence) as caught:
            enter_exit_barrier("127.0.0.1", port, 1, SECRET)
    assert not isinstance(caught.value, LaunchError)  # That would never be tried again.
