from __future__ import annotations

import socket

import pytest

from ports import reusable_port
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.wire import network


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:7077", ("10.0.0.1", 7077)),
        ("host.example:1", ("host.example", 1)),
        ("[fe80::1]:7077", ("fe80::1", 7077)),
        ("::1:7077", ("::1", 7077)),
    ],
)
def test_addresses_as_spark_writes_them(address, expected):
    assert network.split_host_port(address) == expected


@pytest.mark.parametrize("address", ["host", "host:", "host:port"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(ValueError, match="host:port"):
        network.split_host_port(address)


def test_the_interface_of_an_address():
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("192.0.2.99") is None


def test_the_advertised_address_decides():
    assert network.own_address("127.0.0.1") == ("127.0.0.1", "lo")


def test_an_advertised_name_that_leads_nowhere_falls_back_to_the_route():
    address, interface = network.own_address("no-such-host.invalid")
    assert network.interface_of(address) == interface


def test_spark_local_ip_is_the_second_choice(monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert network.own_address("no-such-host.invalid") == ("127.0.0.1", "lo")


def test_the_host_key_tells_addresses_apart():
    assert network.host_key("10.0.0.1") == network.host_key("10.0.0.1")
    assert network.host_key("10.0.0.1") != network.host_key("10.0.0.2")


@pytest.mark.parametrize("namespace", ["net", "pid", "uts"])
def test_containers_of_one_name_and_address_are_hosts_of_their_own(monkeypatch, namespace):
    links = {f"/proc/self/ns/{one}": f"{one}:[1]" for one in ("net", "pid", "uts")}
    monkeypatch.setattr(network.os, "readlink", links.__getitem__)
    here = network.host_key("10.0.0.1")
    links[f"/proc/self/ns/{namespace}"] = f"{namespace}:[2]"
    assert network.host_key("10.0.0.1") != here


def test_listening_is_on_one_address_only():
    listener = network.listen("127.0.0.1")
    try:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.getsockname()[1] > 0
        socket.create_connection(listener.getsockname(), timeout=120).close()
    finally:
        listener.close()


def test_a_small_message_does_not_wait_for_the_answer_to_the_one_before():
    with (
        network.listen("127.0.0.1") as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_host_without_a_route_is_alone_with_itself(monkeypatch):
    def unreachable(self, address):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert network.source_address("192.0.2.1") == network.LOOPBACK


def test_a_port_is_taken_of_the_range_and_a_full_range_is_told():
    port = reusable_port()
    ports = (port, port)
    with network.listen("127.0.0.1", ports) as taken:
        assert taken.getsockname()[1] == port
        with pytest.raises(LaunchError, match=r"No port of port_range=.* is free on 127\.0\.0\.1"):
            network.listen("127.0.0.1", ports)


def test_an_interface_is_found_by_its_name_and_by_its_network():
    lo = network.interface_of("127.0.0.1")
    for interface in (lo, "127.0.0.0/8"):
        assert network.address_on(interface) == ("127.0.0.1", lo)
    assert network.address_on("203.0.113.0/24") is None
