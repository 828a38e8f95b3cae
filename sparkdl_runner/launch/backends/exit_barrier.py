"""How rank 0's agent learns that all other ranks have ended, so that what they use outlives them.

torch's store lives in rank 0's worker, and any rank may return first. Each other agent holds a
connection to rank 0's agent for as long as its worker runs. It sends the attempt's secret and its
rank, and nothing more. The kernel closes the connection, however the agent ends.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.wire.serving import ServerThread

CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.5
HELLO_SECONDS = 10.0
_RANK = struct.Struct(">I")


class ExitBarrier(ServerThread):
    """Waits, in rank 0's agent, for the end of all others.

    Args:
        listener: The listening socket whose port was published.
        peers: The IP addresses that may connect.
        num_others: How many ranks there are besides rank 0.
        secret: What all agents of the attempt know.
        all_left: Called once they have come and gone, from the server's thread.
    """

    def __init__(
        self,
        listener: socket.socket,
        peers: frozenset[str],
        num_others: int,
        secret: str,
        all_left: Callable[[], None],
    ) -> None:
        super().__init__(listener, name="sparkdl-exits", expected=num_others, peers=peers)
        self._num_others = num_others
        self._secret = secret.encode()
        self._all_left = all_left
        self._left: set[int] = set()

    def start(self) -> None:
        """See ``ServerThread.start``."""
        super().start()
        if not self._num_others:
            self._all_left()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Waits for the end of one connection."""
        async with asyncio.timeout(HELLO_SECONDS):
            said = await reader.readexactly(len(self._secret))
            (rank,) = _RANK.unpack(await reader.readexactly(_RANK.size))
        if not hmac.compare_digest(said, self._secret):
            raise ValueError("the caller does not know the secret")
        if not 1 <= rank <= self._num_others:
            raise ValueError("there is no such rank")
        self.recognize()
        with suppress(OSError):  # A connection that breaks has ended as well.
            await reader.read(1)
        if rank not in self._left:
            self._left.add(rank)
            if len(self._left) == self._num_others:
                self._all_left()


def enter_exit_barrier(address: str, port: int, rank: int, secret: str) -> socket.socket:
    """Connects an agent to that of rank 0. Closing the connection tells that its rank has ended.

    Raises:
        RunnerError: It cannot be reached. Its host may be gone, so another attempt may succeed.
    """
    give_up_at = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, port), CONNECT_SECONDS)
            break
        except OSError as error:
            # The way to a host that has just come, or is busy, may be found a moment later.
            is_unreachable = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
            if is_unreachable and time.monotonic() < give_up_at:
                time.sleep(RETRY_SECONDS)
                continue
            raise RunnerError(
                f"Host {socket.gethostname()} cannot reach rank 0 at {address}:{port} ({error}). "
                "All ports between the executors of one application must be open."
            ) from error
    connection.sendall(secret.encode() + _RANK.pack(rank))
    return connection
