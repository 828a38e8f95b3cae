"""A relay between torch's ranks and their store, which admits only the hosts of the run.

torch's store has no authentication: whoever reaches it reads, changes and deletes keys. So rank 0's
worker serves it on the loopback interface, and its agent passes on what comes from the run's hosts.
Other users of rank 0's host reach the store all the same, as they reach gloo's ports: they are kept
away by ``RunConfig(refuse_shared_hosts=True)``. The relay knows nothing of torch's protocol, which
differs from version to version.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress

from sparkdl_runner.launch.backends.listeners import Listeners
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.serving import ServerThread

# The default group's, NCCL's, and what user code opens by itself.
CONNECTIONS_PER_RANK = 16
CONNECT_SECONDS = 10.0
CHUNK_BYTES = 1 << 16
_TRIES = 20
_BACKLOG = 512


class StoreRelay(ServerThread):
    """Passes bytes between torch's clients and its store.

    Args:
        listener: The listening socket whose port was published.
        store: The listening socket that rank 0's worker serves.
        peers: The IP addresses that may connect.
        num_proc: How many ranks there are.
    """

    def __init__(
        self,
        listener: socket.socket,
        store: socket.socket,
        peers: frozenset[str],
        *,
        num_proc: int,
    ) -> None:
        expected = CONNECTIONS_PER_RANK * num_proc
        super().__init__(
            listener, name="sparkdl-store-relay", expected=expected, peers=peers, own_user_only=True
        )
        self._store = store.getsockname()[:2]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes on one connection, until either end closes it."""
        async with asyncio.timeout(CONNECT_SECONDS):
            from_store, to_store = await asyncio.open_connection(*self._store)
        sending = self.spawn(_pass_on(reader, to_store))
        try:
            while some := await from_store.read(CHUNK_BYTES):
                self.recognize()  # The store has answered, so it is a client of torch's.
                writer.write(some)
                await writer.drain()
        finally:
            sending.cancel()
            to_store.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(CHUNK_BYTES):
            writer.write(some)
            await writer.drain()
    writer.close()


def listen(address: str, port_range: network.PortRange | None = None) -> Listeners:
    """Opens the socket for torch's clients on ``address``, and the one for its store behind it.

    Both have the same port: torch has one argument for the port that rank 0 serves, and for the one
    that it connects to.
    """
    port = 0
    for left in reversed(range(_TRIES)):
        listener = network.listen(address, port_range, above=port)
        port = listener.getsockname()[1]
        try:
            return Listeners(listener, _listen_behind(address, port))
        except OSError:
            listener.close()
            if not left:
                raise
    raise AssertionError


def _listen_behind(address: str, port: int) -> socket.socket:
    """Opens the socket for the store, on a loopback address other than ``address``."""
    if address != network.LOOPBACK:
        return socket.create_server((network.LOOPBACK, port), backlog=_BACKLOG)
    try:
        return socket.create_server(("127.0.0.2", port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        # macOS has this address alone of its network, and that of IPv6.
        return socket.create_server(("::1", port), family=socket.AF_INET6, backlog=_BACKLOG)
