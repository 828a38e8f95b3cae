"""A socket with a filter is closed to all addresses but some."""

from __future__ import annotations

import socket

import pytest

from sparkdl_runner.launch.backends import packet_filter

# More than a conditional jump reaches over.
MANY = [f"10.0.{i}.{j}" for i in range(4) for j in range(200)]


def may_filter() -> bool:
    with socket.socket() as one:
        try:
            packet_filter.attach(one, [packet_filter.PASS])
        except PermissionError:
            return False
    return True


def reaches(address: str, allowed: list[str], seconds: float) -> bool:
    """Whether a client at an address of its own gets to a listener with a filter by then."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # As TensorFlow's: of both versions, on all interfaces.
    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.socket(family) as client,
    ):
        packet_filter.attach(listener, packet_filter.only_from(allowed))
        client.settimeout(seconds)
        client.bind((address, 0))
        try:
            client.connect((address, listener.getsockname()[1]))
        except TimeoutError:
            return False
        return True


@pytest.mark.skipif(not may_filter(), reason="this kernel filters for privileged users alone")
@pytest.mark.parametrize(
    ("address", "allowed", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1"], True),
        ("127.0.0.1", ["10.0.0.1", "127.0.0.1", "10.0.0.2", "fe80::1"], True),
        ("127.0.0.2", ["127.0.0.1", "10.0.0.1"], False),
        ("127.0.0.1", ["::1"], False),
        ("127.0.0.1", [], False),
        ("::1", ["fe80::1", "127.0.0.1", "::1"], True),
        ("::1", ["127.0.0.1", "fe80::1", "::2", "1::1"], False),
        (
            "127.0.0.1",
            [*MANY, "127.0.0.1"],
            True,
        ),
        ("::1", [*MANY, "::1"], True),
    ],
)
def test_only_the_addresses_that_are_named_come_in(address, allowed, expected):
    seconds = 120.0 if expected else 0.2
    assert reaches(address, allowed, seconds) is expected


def test_more_addresses_than_a_program_holds_are_refused():
    with pytest.raises(OSError, match="2500 addresses are too many"):
        packet_filter.only_from(f"10.0.{i}.{j}" for i in range(10) for j in range(250))
