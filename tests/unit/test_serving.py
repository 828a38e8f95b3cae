"""A server takes so many connections and no more, and goes on when some have ended."""

from __future__ import annotations

import socket

import pytest

from sparkdl_runner import network
from sparkdl_runner.serving import ServerThread


class Echo(ServerThread):
    """Says what it hears, line by line."""

    def admits(self, peer_address):
        return True

    async def handle(self, reader, writer):
        while line := await reader.readline():
            writer.write(line)


@pytest.fixture
def server():
    server = Echo(network.listen("127.0.0.1"), name="sparkdl-echo", max_connections=2)
    server.start()
    yield server
    server.close()


def visit(server):
    return socket.create_connection(server.address, timeout=30)


def answers(connection):
    connection.sendall(b"a\n")
    return connection.recv(2, socket.MSG_WAITALL) == b"a\n"


def test_beyond_its_limit_connections_are_closed_and_the_others_go_on(server):
    with visit(server) as first, visit(server) as second:
        assert answers(first)
        assert answers(second)
        for _ in range(3):
            with visit(server) as too_many:
                assert too_many.recv(1) == b""
        assert answers(first)
        second.shutdown(socket.SHUT_WR)
        assert second.recv(1) == b""  # It has ended, so there is room again.
        with visit(server) as next_one:
            assert answers(next_one)
