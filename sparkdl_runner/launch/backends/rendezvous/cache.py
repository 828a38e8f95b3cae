"""A host's copy of the rendezvous store, so that what its ranks read crosses the network once.

Each of Horovod's ranks reads the values of all others, which grow with the number of ranks. So the
ranks of a host ask their own first agent. It follows each scope of the store over one connection,
and passes on what its ranks write.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from sparkdl_runner.launch.backends import Release, Rendezvous
from sparkdl_runner.launch.backends.listeners import Listeners
from sparkdl_runner.launch.backends.rendezvous.server import (
    ENTRY,
    MAX_VALUE_BYTES,
    WAIT_SECONDS,
    Answer,
    KeyValueServer,
    prefix_of,
    read_answer,
    request,
)
from sparkdl_runner.launch.wire import network

FORWARD_SECONDS = 60.0


class RendezvousCache(KeyValueServer):
    """Serves a host's ranks.

    Args:
        listener: The listening socket that they know.
        store: The address and port of the store.
        peers: The addresses of this host.
        num_proc: How many ranks there are on this host.
        secret: What a caller must know, here and at the store.
    """

    def __init__(
        self,
        listener: socket.socket,
        store: tuple[str, int],
        peers: frozenset[str],
        *,
        num_proc: int,
        secret: str,
    ) -> None:
        super().__init__(
            listener, name="sparkdl-rendezvous-cache", peers=peers, num_proc=num_proc, secret=secret
        )
        self._store = store
        self._store_prefix = prefix_of(secret, store[1])
        self._scopes: dict[str, _Copy] = {}

    async def answer(self, method: str, scope: str, key: str, body: bytes) -> Answer:
        """See ``KeyValueServer``."""
        if method == "GET":
            return await self._read(scope, key)
        async with asyncio.timeout(FORWARD_SECONDS):
            reader, writer = await self._ask(method, f"{scope}/{key}", body)
            try:
                answer = await read_answer(reader)
            finally:
                writer.close()
        if method == "DELETE" and (copy := self._scopes.pop(scope, None)):
            copy.following.cancel()  # The next meeting's values are others.
        return answer

    async def _read(self, scope: str, key: str) -> Answer:
        copy = self._scopes.get(scope)
        if copy is None:
            copy = self._scopes[scope] = _Copy()
            copy.following = self.spawn(self._follow(scope, copy))
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while key not in copy.values:
                    await copy.changed.wait()
        value = copy.values.get(key)
        return ("404 Not Found", b"") if value is None else ("200 OK", value)

    async def _follow(self, scope: str, copy: _Copy) -> None:
        """Copies a scope until its meeting ends."""
        try:
            reader, writer = await self._ask("FOLLOW", f"{scope}/", b"")
            try:
                await reader.readuntil(b"\r\n\r\n")
                while True:
                    key_bytes, size = ENTRY.unpack(await reader.readexactly(ENTRY.size))
                    if size > MAX_VALUE_BYTES:
                        return
                    key = (await reader.readexactly(key_bytes)).decode("ascii")
                    copy.add(key, await reader.readexactly(size))
            finally:
                writer.close()
        except (OSError, EOFError, ValueError):
            pass  # The meeting is over, or the connection broke: the next read begins again.
        finally:
            if self._scopes.get(scope) is copy:
                del self._scopes[scope]

    async def _ask(
        self, method: str, path: str, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._store)
        writer.write(request(method, self._store_prefix + path, body))
        await writer.drain()
        return reader, writer


class _Copy:
    """The keys and values of one scope that this host has received so far."""

    following: asyncio.Task[None]

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = asyncio.Event()

    def add(self, key: str, value: bytes) -> None:
        self.values[key] = value
        self.changed.set()
        self.changed = asyncio.Event()


def serve(listeners: Listeners, rendezvous: Rendezvous) -> Release:
    """Serves a copy of the store; see ``Backend.serve_copy``."""
    cache = RendezvousCache(
        listeners.public,
        (rendezvous.address, rendezvous.port),
        frozenset(network.addresses_of_host()),
        num_proc=rendezvous.num_proc,
        secret=rendezvous.secret,
    )
    cache.start()
    return cache.close
