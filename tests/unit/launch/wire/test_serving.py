"""A server takes so many connections and no more; strangers make room for those it knows."""

from __future__ import annotations

import os
import resource
import socket
import time

import pytest

from sparkdl_runner.launch.wire import network, serving
from sparkdl_runner.launch.wire.serving import ServerThread


class Echo(ServerThread):
    """Says what it hears, line by line; who says something is known."""

    async def handle(self, reader, writer):
        while line := await reader.readline():
            self.recognize()
            writer.write(line)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (80, 80))
    server = Echo(network.listen("127.0.0.1"), name="sparkdl-echo", expected=2)
    server.start()
    yield server
    server.close()


def visit(server):
    return socket.create_connection(server.address, timeout=120)


def answers(connection):
    connection.sendall(b"a\n")
    return connection.recv(2, socket.MSG_WAITALL) == b"a\n"


def was_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_oldest_stranger_goes_when_there_are_too_many(server):
    with visit(server) as known:
        assert answers(known)
        strangers = [visit(server) for _ in range(200)]
        assert all(map(was_closed, strangers[:-12]))
        deadline = time.monotonic() + 120
        while len(server._connections) > 12:  # Each ends in the server's own time.
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with visit(server) as late:
            assert answers(late)
        assert answers(known)
        for stranger in strangers:
            stranger.close()


def test_those_that_are_known_are_not_closed_for_others(server):
    known = [visit(server) for _ in range(12)]
    assert all(map(answers, known))
    with visit(server) as one_too_many:
        assert was_closed(one_too_many)
    assert all(map(answers, known))
    for connection in known:
        connection.close()


def test_a_burst_of_strangers_does_not_use_up_open_files(caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    burst = 300  # They wait in the kernel until the server's thread looks.
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, opened + burst + 220), hard))
    strangers = []

    async def hold_up_the_server():
        strangers.extend(visit(server) for _ in range(burst))

    server = Echo(network.listen("127.0.0.1"), name="sparkdl-echo", expected=2)
    try:
        server.start()
        server.call(hold_up_the_server(), 300)
        assert len(strangers) == burst
        with visit(server) as late:
            assert answers(late)
    finally:
        server.close()
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not caplog.records, "asyncio was left without a file"


def test_the_limit_leaves_the_process_files_and_its_own_ranks_a_place():
    few = Echo(network.listen("127.0.0.1"), name="few", expected=2)
    many = Echo(network.listen("127.0.0.1"), name="many", expected=5000)
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert few._most - 2 <= max(64, open_files // 8)
    assert many._most > 5000
    few.close()
    many.close()


@pytest.mark.parametrize(
    ("user", "peer", "is_admitted"),
    [
        (os.geteuid(), "127.0.0.1", True),
        (os.geteuid() + 1, "127.0.0.1", False),
        # Nobody holds the other end any more, or it is on another host.
        (None, "127.0.0.1", False),
        (None, "192.0.2.7", True),
    ],
)
def test_who_holds_the_other_end_decides(server, monkeypatch, user, peer, is_admitted):
    monkeypatch.setattr(serving, "owner", lambda here, there: user)
    monkeypatch.setattr(server, "_own_user_only", True)
    assert server._admits(("127.0.0.1", 1), (peer, 2)) is is_admitted
