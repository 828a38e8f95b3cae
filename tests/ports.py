"""Ports that no other process takes while a test relies on them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

_FIRST, _KERNELS_OWN = 10_000, Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of the loopback address that refuses connections: it is held, and nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def reusable_port() -> int:
    """A free port for a test that closes it and takes it again.

    The kernel gives it to nobody who asks for any port, and test sessions begin their search at
    different ones.
    """
    end = max(_FIRST + 10_000, int(_KERNELS_OWN.read_text().split()[0]))
    first = _FIRST + os.getpid() % (end - _FIRST)
    for port in chain(range(first, end), range(_FIRST, first)):
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            continue
    raise AssertionError(f"no port from {_FIRST} to {end} is free")
