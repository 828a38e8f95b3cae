"""A listening TCP socket that any process may serve, and to which this process alone can connect.

torch's store accepts every connection, so the kernel has to filter them: a packet filter on the
socket (``socket(7)``, SO_ATTACH_FILTER) drops all requests to connect but the one from a port that
this process has just bound. No other process can send from a port that is bound already. A filter
needs no privilege, and the process that serves the socket does not notice it.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from typing import Final

_SOURCE: Final = "127.0.0.1"
_SO_ATTACH_FILTER = 26
# Classic BPF, as in linux/filter.h.
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20
_IF_EQUAL, _IF_BITS, _RETURN = 0x15, 0x45, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = struct.Struct("@HP")
_FROM_IP_HEADER = 0xFFF00000  # SKF_NET_OFF; without it, offsets count from TCP's header.
_SYN = 2


class PrivateListener:
    """A listening socket of the loopback interface.

    Args:
        address: One of 127.0.0.0/8.
        port: Its port.

    Raises:
        OSError: The port is taken.
    """

    unfiltered = ""
    """Why the kernel filters nothing here, so that others can connect; else ""."""

    def __init__(self, address: str, port: int) -> None:
        self.socket: Final = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        """For the process that serves it to inherit."""
        self._one_at_a_time = asyncio.Lock()
        try:
            self.socket.bind((address, port))
            try:
                self._admit(0)  # Nobody has port 0.
            except OSError as error:  # Some sandboxes' own kernels know no filters.
                self.unfiltered = str(error)
            self.socket.listen(512)
        except BaseException:
            self.socket.close()
            raise

    async def connect(self) -> socket.socket:
        """Connects to it."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Without SO_REUSEADDR, nobody else can bind the same port as long as this is open.
            connection.bind((_SOURCE, 0))
            async with self._one_at_a_time:
                self._admit(connection.getsockname()[1])
                try:
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(connection, self.socket.getsockname())
                finally:
                    self._admit(0)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes this process's copy. May be called twice."""
        self.socket.close()

    def _admit(self, port: int) -> None:
        """Lets the kernel drop each request to connect that does not come from ``port``."""
        if self.unfiltered:
            return
        (source,) = struct.unpack("!I", socket.inet_aton(_SOURCE))
        program = (
            (_LOAD_BYTE, 0, 0, 13),  # TCP's flags.
            (_IF_BITS, 0, 5, _SYN),  # What belongs to a connection passes: to the last line.
            (_LOAD_HALF, 0, 0, 0),  # The port that it comes from.
            (_IF_EQUAL, 0, 2, port),
            (_LOAD_WORD, 0, 0, _FROM_IP_HEADER + 12),  # The address that it comes from.
            (_IF_EQUAL, 1, 0, source),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, 0xFFFFFFFF),
        )
        text = b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)
        buffer = ctypes.create_string_buffer(text, len(text))
        packed = _PROGRAM.pack(len(program), ctypes.addressof(buffer))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, packed)
