"""Addresses: which one a rank is reached at, which interface has it, which host that is."""

from __future__ import annotations

import os
import socket

import psutil

LOOPBACK = "127.0.0.1"


def split_host_port(address: str) -> tuple[str, int]:
    """Splits ``host:port`` as Spark writes it, also for IPv6 (``[::1]:7077``, ``::1:7077``).

    Raises:
        ValueError: There is no port.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"{address!r} is not an address of the form host:port.")
    return host.strip("[]"), int(port)


def resolve(host: str) -> str:
    """Returns an IP address of ``host``, IPv4 where there is one."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def interface_of(address: str) -> str | None:
    """Returns the name of the local network interface that has ``address``, or None."""
    return _interfaces().get(address)


def addresses_of_host() -> tuple[str, ...]:
    """Returns all IP addresses of this host."""
    return tuple(_interfaces())


def _interfaces() -> dict[str, str]:
    """The network interface of each IP address of this host."""
    return {
        # IPv6 link-local addresses come with their scope: fe80::1%eth0.
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }


def own_address(advertised: str) -> tuple[str, str]:
    """Finds the address on which this host talks to the others.

    Spark's executors already reach one another at the name they advertise, so that name decides
    between several network cards. Where it does not lead to a local interface (address
    translation, a name that resolves to 127.0.1.1), the route to it does.

    Args:
        advertised: The host name or address under which Spark knows this executor.

    Returns:
        The IP address and the name of its interface.
    """
    candidates = []
    try:
        candidates.append(resolve(advertised))
    except OSError:
        pass
    if os.environ.get("SPARK_LOCAL_IP"):
        candidates.append(os.environ["SPARK_LOCAL_IP"])
    for candidate in candidates:
        interface = interface_of(candidate)
        if interface is not None:
            return candidate, interface
    candidate = _source_address(candidates[0] if candidates else "192.0.2.1")
    return candidate, interface_of(candidate) or "lo"


def _source_address(destination: str) -> str:
    """The local address that the kernel would use towards ``destination``; sends nothing."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


def host_key(address: str) -> str:
    """Identifies this host among those of a run.

    Two containers or network namespaces may share a hostname, and two namespaces of one machine
    share everything else, so the key holds the hostname, the namespaces and the address.
    """
    parts = [socket.gethostname(), address]
    for namespace in ("net", "pid", "uts"):
        try:
            parts.append(os.readlink(f"/proc/self/ns/{namespace}"))
        except OSError:
            parts.append("-")
    return "|".join(parts)


def listen(address: str) -> socket.socket:
    """Opens a listening TCP socket on ``address`` alone, at a free port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener
