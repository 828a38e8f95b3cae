"""To a private listener no process can connect but the one that made it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess

import pytest

from sparkdl_runner.backends import packet_filter
from sparkdl_runner.backends.private_listener import PrivateListener

ADDRESS = "127.0.0.2"
NOBODY = 65534


@pytest.fixture
def listener():
    listener = PrivateListener(ADDRESS, 0)
    yield listener
    listener.close()


def reaches(listener: PrivateListener, source: str | None = None) -> bool:
    """Whether it can be reached without its own help; a request that is dropped has no answer."""
    with socket.socket() as stranger:
        stranger.settimeout(0.1)
        if source is not None:
            stranger.bind((source, 0))
        try:
            stranger.connect(listener.socket.getsockname())
        except TimeoutError:
            return False
    return True


def test_it_connects_and_serves_as_any_other(listener):
    async def connect_three_times() -> list[socket.socket]:
        return list(await asyncio.gather(*(listener.connect() for _ in range(3))))

    for connection in asyncio.run(connect_three_times()):
        served, peer = listener.socket.accept()
        with connection, served:
            assert peer[0] == "127.0.0.1"
            served.sendall(b"a" * 100_000)
            connection.setblocking(True)
            assert connection.recv(100_000, socket.MSG_WAITALL) == b"a" * 100_000


@pytest.mark.parametrize("source", [None, "127.0.0.1", ADDRESS])
def test_nobody_else_reaches_it_before_or_after(listener, source):
    assert not reaches(listener, source)
    with asyncio.run(listener.connect()):
        assert not reaches(listener, source)
    assert not reaches(listener, source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_nobody_else_can_send_from_the_port_that_it_admits(listener):
    with asyncio.run(listener.connect()) as connection:
        address = connection.getsockname()
        theirs = (
            "import socket\ns = socket.socket()\n"
            "for reuse in socket.SO_REUSEADDR, socket.SO_REUSEPORT:\n"
            f"    s.setsockopt(socket.SOL_SOCKET, reuse, 1)\ns.bind({address})"
        )
        ended = subprocess.run(
            ["/usr/bin/python3", "-c", theirs], user=NOBODY, capture_output=True, text=True
        )
        assert "Address already in use" in ended.stderr


def test_a_kernel_without_filters_is_told_of_and_it_serves_all_the_same(monkeypatch):
    monkeypatch.setattr(packet_filter, "_SO_ATTACH_FILTER", 9999)
    listener = PrivateListener(ADDRESS, 0)
    assert "Protocol not available" in listener.unfiltered
    asyncio.run(listener.connect()).close()
    assert reaches(listener)
    listener.close()


def test_the_source_of_a_request_must_be_right_in_address_as_well_as_in_port(listener):
    with socket.socket() as ours, socket.socket() as theirs:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        theirs.bind((ADDRESS, port))
        theirs.settimeout(0.1)
        listener._admit(port)
        with pytest.raises(TimeoutError):
            theirs.connect(listener.socket.getsockname())
        ours.connect(listener.socket.getsockname())
