"""The relay admits the run's own to torch's store."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from ports import reusable_port
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.backends import store_relay
from sparkdl_runner.launch.backends.store_relay import StoreRelay

NOBODY = 65534


@pytest.fixture
def listeners():
    public, private = store_relay.listen("127.0.0.1")
    with closing(public), closing(private):
        yield public, private


@pytest.fixture
def relay(
    listeners, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreRelay]:
    monkeypatch.setattr(store_relay, "CONNECT_SECONDS", 120.0)
    peers = getattr(request, "param", "127.0.0.1")
    with closing(StoreRelay(*listeners, frozenset({peers}), num_proc=2)) as relay:
        relay.start()
        yield relay


def visit(relay: StoreRelay) -> socket.socket:
    return socket.create_connection(relay.address, timeout=120)


def was_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_both_ends_of_a_connection_hear_each_other_and_of_the_end(relay, listeners):
    _, private = listeners
    for ours_closes in (True, False):
        with visit(relay) as client, private.accept()[0] as store:
            store.settimeout(120)
            client.sendall(b"question")
            assert store.recv(8, socket.MSG_WAITALL) == b"question"
            store.sendall(b"answer")
            assert client.recv(6, socket.MSG_WAITALL) == b"answer"
            first, second = (client, store) if ours_closes else (store, client)
            first.close()
            assert was_closed(second)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_this_host_is_not_passed_on(relay, listeners):
    _, private = listeners
    host, port = relay.address
    theirs = f"import socket; c = socket.create_connection(({host!r}, {port})); print(c.recv(1))"
    subprocess.run(["/usr/bin/python3", "-c", theirs], user=NOBODY, capture_output=True)
    with visit(relay) as ours:
        ours.sendall(b"o")
        with private.accept()[0] as first:
            assert first.recv(1) == b"o"


@pytest.mark.parametrize("relay", ["192.0.2.7"], indirect=True)
def test_hosts_that_are_not_of_the_run_are_not_passed_on(relay):
    with visit(relay) as stranger:
        assert was_closed(stranger)


def test_torch_serves_it_and_its_clients_do_not_notice(relay, listeners):
    distributed = pytest.importorskip("torch.distributed")
    _, private = listeners
    host, port = relay.address
    patience = timedelta(seconds=120)
    served = distributed.TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=os.dup(private.fileno()),
        timeout=patience,
    )
    client = distributed.TCPStore(host, port, wait_for_workers=False, timeout=patience)
    client.set("key", b"v" * 300_000)
    assert served.get("key") == b"v" * 300_000
    assert client.delete_key("key")


def test_a_port_that_is_taken_behind_is_given_up_for_another():
    taken = socket.create_server(("127.0.0.2", 0))
    port = taken.getsockname()[1]
    public, private = store_relay.listen("127.0.0.1", (port, port + 20))
    with taken, closing(public), closing(private):
        assert public.getsockname()[1] == private.getsockname()[1] != port


def test_a_host_with_one_loopback_address_has_that_of_ipv6_behind(monkeypatch):
    create = socket.create_server

    def refuse(address, **options):
        if address[0] == "127.0.0.2":
            raise OSError(errno.EADDRNOTAVAIL, "Can't assign requested address")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", refuse)
    public, private = store_relay.listen("127.0.0.1")
    with closing(public), closing(private):
        assert private.getsockname()[:2] == ("::1", public.getsockname()[1])


def test_a_range_of_ports_can_be_used_again_at_once_and_its_end_is_told():
    port = reusable_port()
    public, private = store_relay.listen("127.0.0.1", (port, port))
    with closing(public), closing(private):
        client = socket.create_connection(private.getsockname())
        private.accept()[0].close()  # This end closes first, so the kernel remembers it.
        client.close()
    public, private = store_relay.listen("127.0.0.1", (port, port))
    public.close()
    with closing(private), pytest.raises(LaunchError, match=rf"port_range=\({port}, {port}\) is"):
        store_relay.listen("127.0.0.1", (port, port))
