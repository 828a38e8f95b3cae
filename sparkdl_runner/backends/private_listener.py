"""A listening TCP socket that any process may serve, and to which this process alone can connect.

torch's store accepts every connection, so the kernel has to filter them: a packet filter on the
socket (``socket(7)``, SO_ATTACH_FILTER) drops all requests to connect but the one from a port that
this process has just bound. No other process can send from a port that is bound already. A filter
needs no privilege, and the process that serves the socket does not notice it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from sparkdl_runner.backends.packet_filter import (
    DROP,
    FROM_IP_HEADER,
    IF_BITS,
    IF_EQUAL,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_WORD,
    PASS,
    attach,
)

_SOURCE: Final = "127.0.0.1"
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
        """The descriptor that the serving process inherits."""
        self._one_at_a_time = asyncio.Lock()
        # The port may have been an earlier attempt's, whose connections the kernel remembers.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((address, port))
            try:
                self._admit(0)  # No process has port 0.
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
            # Without SO_REUSEADDR, no other process can bind this port while it is open.
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
            (LOAD_BYTE, 0, 0, 13),  # TCP's flags.
            (
                IF_BITS,
                0,
                5,
                _SYN,
            ),  # What belongs to a connection passes: to the last line.
            (LOAD_HALF, 0, 0, 0),  # The port that it comes from.
            (IF_EQUAL, 0, 2, port),
            (
                LOAD_WORD,
                0,
                0,
                FROM_IP_HEADER + 12,
            ),  # The address that it comes from.
            (IF_EQUAL, 1, 0, source),
            DROP,
            PASS,
        )
        attach(self.socket, program)
