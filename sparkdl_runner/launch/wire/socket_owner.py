"""Which user of this host holds the other end of a TCP connection.

The kernel records the user of each socket, and any process may ask: by ``sock_diag(7)``, which
looks one connection up, or in ``/proc/net/tcp`` where a container forbids netlink sockets.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path

Address = tuple[str, int]

IS_KNOWN = hasattr(socket, "AF_NETLINK")
"""Whether the system tells any process. macOS tells only root, so ``owner`` is not called there."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_QUESTION = struct.Struct("=BBBxI")  # inet_diag_req_v2, up to the connection
_CONNECTION = struct.Struct("!HH16s16s12s")  # inet_diag_sockid
_ANSWER = struct.Struct("=4x48s12xII")  # inet_diag_msg: the connection, uid, inode
_ANY = b"\0\0\0\0" + b"\xff" * 8  # Any interface, and no cookie.
_ALL_STATES = 0xFFFFFFFF


def owner(here: Address, peer: Address) -> int | None:
    """The id of the user at the other end of a connection.

    Args:
        here: This end's IP address and port.
        peer: The other end's.

    Returns:
        ``None`` where no process of this host (of this network namespace) holds it, or no longer.
    """
    try:
        return _ask_kernel(here, peer)
    except OSError:
        return _look_up(here, peer)


def _ask_kernel(here: Address, peer: Address) -> int | None:
    sought = _CONNECTION.pack(peer[1], here[1], _packed(peer), _packed(here), _ANY)
    family = socket.AF_INET6 if ":" in here[0] else socket.AF_INET
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES) + sought
    size = _HEADER.size + len(question)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(header + question)
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number == -2:  # ENOENT: there is no such connection.
            return None
        raise OSError(-number, os.strerror(-number))
    connection, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    # Without such a connection the kernel answers with a listener; a closed one has no inode.
    return uid if connection[:4] == sought[:4] and inode else None


def _look_up(here: Address, peer: Address) -> int | None:
    ends = f"{_hexadecimal(peer)} {_hexadecimal(here)}"
    table = Path("/proc/net/tcp6" if ":" in here[0] else "/proc/net/tcp")
    for line in table.read_text(encoding="ascii").splitlines():
        fields = line.split()
        if f"{fields[1]} {fields[2]}" == ends:
            return int(fields[7]) if fields[9] != "0" else None
    if ":" not in here[0]:  # A socket of IPv6 may talk IPv4.
        return _look_up(_in_ipv6(here), _in_ipv6(peer))
    return None


def _in_ipv6(address: Address) -> Address:
    return f"::ffff:{address[0]}", address[1]


def _packed(address: Address) -> bytes:
    return ipaddress.ip_address(address[0]).packed.ljust(16, b"\0")


def _hexadecimal(address: Address) -> str:
    # The kernel prints an address as numbers of 32 bits, of its own byte order.
    packed = ipaddress.ip_address(address[0]).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
