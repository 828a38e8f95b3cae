"""Addresses: which one a rank is reached at, which interface has it, which host that is."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

import psutil

from sparkdl_runner.base.this_host import namespace
from sparkdl_runner.errors import LaunchError

LOOPBACK = "127.0.0.1"
PortRange = tuple[int, int]


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
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(entries[0][4][0])


def answers(host: str, port: int, seconds: float) -> bool:
    """Whether something accepts a TCP connection there within so many seconds."""
    try:
        with socket.create_connection((host, port), seconds):
            return True
    except OSError:
        return False


def interface_of(address: str) -> str | None:
    """Returns the name of the local network interface that has ``address``, or None."""
    return _interfaces().get(address)


def addresses_of_host() -> tuple[str, ...]:
    """Returns all IP addresses of this host."""
    return tuple(_interfaces())


def is_loopback(address: str) -> bool:
    """Whether no other host can reach ``address``."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address_on(interface: str) -> tuple[str, str] | None:
    """Finds this host's address on one of its networks, IPv4 where there is one.

    Args:
        interface: The interface's name, or its network as ``10.1.0.0/16``.

    Returns:
        The IP address and the name of its interface; None if this host has none there.
    """
    network = ipaddress.ip_network(interface, strict=False) if "/" in interface else None
    addresses = [
        (address, name)
        for address, name in _interfaces().items()
        if name == interface or (network is not None and ipaddress.ip_address(address) in network)
    ]
    return min(addresses, key=lambda pair: ":" in pair[0], default=None)


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
    candidate = source_address(candidates[0] if candidates else "192.0.2.1")
    return candidate, interface_of(candidate) or "lo"


def source_address(destination: str) -> str:
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
    kinds = ("net", "pid", "uts")
    return "|".join([socket.gethostname(), address, *(namespace(kind) or "-" for kind in kinds)])


def listen(address: str, port_range: PortRange | None = None, *, above: int = 0) -> socket.socket:
    """Opens a listening TCP socket on ``address`` alone, at a free port.

    Args:
        address: An IP address of this host.
        port_range: The first and the last port to try; None for any that the kernel gives.
        above: Of the range, only ports above this one are tried.

    Raises:
        LaunchError: No port of the range is free.
    """
    if port_range is None:
        return _listen(address, 0)
    for port in range(max(port_range[0], above + 1), port_range[1] + 1):
        try:
            return _listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise LaunchError(
        f"No port of port_range={port_range} is free on {address} (host {socket.gethostname()}): "
        "end what listens there, or widen RunConfig.port_range."
    )


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Accepted connections inherit this. Without it, a second small message is not sent until the
    # first is acknowledged, which the other kernel delays by up to 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        if port:  # It may have been an earlier run's, whose last connections the kernel remembers.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener
