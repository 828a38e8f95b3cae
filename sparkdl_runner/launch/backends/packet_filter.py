"""Packet filters for sockets: small programs that the kernel runs on each packet.

Classic BPF, as in ``linux/filter.h`` and ``socket(7)``, SO_ATTACH_FILTER. On most kernels a filter
needs no privilege. Sockets that are accepted inherit their listener's, and a process that serves
the socket does not notice it. Offsets count from TCP's header.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Iterable, Sequence

Instruction = tuple[int, int, int, int]
"""Code, jumps if true and if not, and a number."""

LOAD_BYTE, LOAD_WORD = 0x30, 0x20
SHIFT_RIGHT, IF_EQUAL = 0x74, 0x15
GO_ON, RETURN = 0x05, 0x06
FROM_IP_HEADER = 0xFFF00000  # SKF_NET_OFF; without it, offsets count from TCP's header.
DROP, PASS = (RETURN, 0, 0, 0), (RETURN, 0, 0, 0xFFFFFFFF)

_SO_ATTACH_FILTER = 26
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = struct.Struct("@HP")
_MOST_INSTRUCTIONS = 4096


def attach(target: socket.socket, program: Sequence[Instruction]) -> None:
    """Has the kernel run a program on what comes to a socket.

    Raises:
        OSError: The kernel does not take it.
    """
    text = b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(text, len(text))
    packed = _PROGRAM.pack(len(program), ctypes.addressof(buffer))
    target.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, packed)


def only_from(addresses: Iterable[str]) -> list[Instruction]:
    """A program that drops what does not come from some IP addresses, of either version.

    Raises:
        OSError: They are more than a program can hold.
    """
    known = {ipaddress.ip_address(address) for address in addresses}
    version_4 = [(address.packed, 12) for address in known if address.version == 4]
    version_6 = [(address.packed, 8) for address in known if address.version == 6]
    of_version_4, of_version_6 = _any_of(version_4), _any_of(version_6)
    program = [
        (LOAD_BYTE, 0, 0, FROM_IP_HEADER),
        (SHIFT_RIGHT, 0, 0, 4),
        # A jump reaches 255 instructions, so the others are reached by one without a condition.
        (IF_EQUAL, 1, 0, 4),
        (GO_ON, 0, 0, len(of_version_4)),
        *of_version_4,
        *of_version_6,
    ]
    if len(program) > _MOST_INSTRUCTIONS:
        raise OSError(f"{len(known)} addresses are too many for one filter")
    return program


def _any_of(addresses: Iterable[tuple[bytes, int]]) -> list[Instruction]:
    """Passes what comes from one of some addresses, which begin so far into the IP header."""
    program: list[Instruction] = []
    for packed, offset in addresses:
        words = struct.unpack(f"!{len(packed) // 4}I", packed)
        for number, word in enumerate(words):
            to_the_next = 2 * (len(words) - number - 1) + 1
            program += [
                (LOAD_WORD, 0, 0, FROM_IP_HEADER + offset + 4 * number),
                (IF_EQUAL, 0, to_the_next, word),
            ]
        program.append(PASS)
    return [*program, DROP]
