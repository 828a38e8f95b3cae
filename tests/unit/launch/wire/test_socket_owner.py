"""Whose process holds the other end of a connection."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.launch.wire import socket_owner

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    with socket.create_server((request.param, 0), family=family) as listener:
        yield listener


@pytest.fixture(params=["the kernel", "its table"])
def owner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "its table":

        def forbidden(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(socket_owner, "_ask_kernel", forbidden)
    return socket_owner.owner


def ends(connection: socket.socket) -> tuple[socket_owner.Address, socket_owner.Address]:
    here, peer = connection.getsockname()[:2], connection.getpeername()[:2]
    return here, peer


def test_ours_is_told_and_not_once_it_is_closed(listener, owner) -> None:
    with socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        assert owner(*ends(accepted)) == os.geteuid()
        here, peer = ends(accepted)
        assert owner(here, (peer[0], 1)) is None
    assert owner(here, peer) is None
    accepted.close()


def test_a_connection_that_the_kernel_does_not_know_is_not_looked_for_in_its_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables: list[object] = []
    monkeypatch.setattr(socket_owner, "_look_up", lambda *ends: tables.append(ends))
    # As each from another host: the table of a host with many ranks is long.
    assert socket_owner.owner(("127.0.0.1", 1), ("192.0.2.1", 2)) is None
    assert tables == []


@as_root
@pytest.mark.parametrize("through_ipv6", [False, True])
def test_another_users_is_told(listener, owner, through_ipv6: bool) -> None:
    host, port = listener.getsockname()[:2]
    if through_ipv6 and ":" not in host:
        host = f"::ffff:{host}"
    visit = f"import socket; c = socket.create_connection(({host!r}, {port})); c.recv(1)"
    with subprocess.Popen(["/usr/bin/python3", "-c", visit], user=NOBODY):
        accepted, _ = listener.accept()
        assert owner(*ends(accepted)) == NOBODY
        accepted.close()
