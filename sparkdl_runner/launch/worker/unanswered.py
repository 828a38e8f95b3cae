"""Which hosts do not answer a worker: those to which its TCP connections send again and again."""

from __future__ import annotations

import ipaddress
import os
import struct
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
# States in ``/proc/net/tcp``: ESTABLISHED, and SYN_SENT of a connection that is being made.
_OPEN_OR_OPENING = ("01", "02")


def unanswered_addresses(pid: int) -> list[str]:
    """The IP addresses from which the kernel awaits an acknowledgement that is overdue.

    Args:
        pid: The worker's process. Its network is read, which the agent shares.
    """
    addresses = set()
    own = _sockets(pid)
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                # sl, local, remote, state, queues, timer, times sent again, uid, timeout, inode
                fields = line.split()
                if fields[3] in _OPEN_OR_OPENING and int(fields[6], 16) and fields[9] in own:
                    addresses.add(_address(fields[2].partition(":")[0]))
    return sorted(addresses)


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    inodes = set()
    with suppress(OSError):
        for entry in os.scandir(PROC / str(pid) / "fd"):
            with suppress(OSError):
                inodes.add(os.readlink(entry.path).removeprefix("socket:[").removesuffix("]"))
    return inodes


def _address(hexadecimal: str) -> str:
    """An address that the kernel prints as numbers of 32 bits, of its own byte order."""
    words = (int(hexadecimal[at : at + 8], 16) for at in range(0, len(hexadecimal), 8))
    address = ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
