"""An asyncio TCP server in a thread of its own, on a socket that is already listening."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from sparkdl_runner.launch.wire.network import addresses_of_host
from sparkdl_runner.launch.wire.socket_owner import IS_KNOWN, Address, owner

# asyncio's default is 100, too few for thousands of agents that connect at once.
BACKLOG = 4096
# asyncio accepts as many connections as this before it handles any. With more, a burst of strangers
# would use up this process's open files.
ACCEPTED_AT_ONCE = 16


class ServerThread(ABC):
    """Accepts connections until closed, each handled by ``handle`` and closed after it.

    When there are too many connections, the oldest one that has not authenticated is closed, so
    that strangers cannot keep the run's own processes out.

    Args:
        listener: A listening socket; the server owns it from ``start`` on.
        name: The thread's name.
        expected: How many connections the run's own processes need at once. Others may be open
            besides, as far as this process's limit of open files allows.
        peers: The IP addresses that may connect; None for any.
        own_user_only: Whether of this host only processes of our own user may connect,
            where the system tells whose they are.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        name: str,
        expected: int,
        peers: frozenset[str] | None = None,
        own_user_only: bool = False,
    ) -> None:
        self._listener = listener
        self._peers = peers
        self._own_user_only = own_user_only and IS_KNOWN
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = expected + min(max(64, 4 * expected), open_files // 8)
        self._strangers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._own_addresses = frozenset(addresses_of_host())
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._helpers: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._stopped: asyncio.Event = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """The IP address and port that the server listens on."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @abstractmethod
    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection. What it raises ends that connection and nothing else."""

    def recognize(self) -> None:
        """Marks the connection that is being handled as authenticated."""
        task = asyncio.current_task()
        if task is not None:
            self._strangers.pop(task, None)

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout_seconds: float) -> None:
        """Runs ``coroutine`` in the server's loop and waits for it, at most so long.

        Called from that loop's own thread, it does not wait.
        """
        if not self._thread.is_alive():
            coroutine.close()
            return
        if threading.current_thread() is self._thread:
            self.spawn(coroutine)
            return
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            future.result(timeout_seconds)
        except TimeoutError:
            future.cancel()

    def close(self) -> None:
        """Stops serving, closes all connections and the listening socket. May be called twice."""
        if self._thread.ident is None:
            self._listener.close()
            self._loop.close()
        elif self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._listener.close()
            self._loop.close()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something beside the connections, until it ends or the server does."""
        task = self._loop.create_task(coroutine)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    def _admits(self, here: Address, peer: Address) -> bool:
        """Whether a connection between two addresses, this end's first, may be served at all."""
        if self._peers is not None and peer[0] not in self._peers:
            return False
        if not self._own_user_only:
            return True
        user = owner(here, peer)
        if user is None:  # It comes from another host, or was closed.
            return peer[0] not in self._own_addresses
        return user == os.geteuid()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._accept, sock=self._listener, backlog=ACCEPTED_AT_ONCE
        )
        self._listener.listen(BACKLOG)
        await self._stopped.wait()
        # Accept no more, and wait for the connections that asyncio is just accepting: if the server
        # closed now, they would stay open for ever.
        self._loop.remove_reader(self._listener)
        others = {*self._connections, *self._helpers, asyncio.current_task()}
        accepting = asyncio.all_tasks() - others
        await asyncio.gather(*accepting, return_exceptions=True)
        server.close()
        connections = dict(self._connections)
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        for helper in (helpers := set(self._helpers)):
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._converse(reader, writer))
        self._connections[task] = self._strangers[task] = writer
        task.add_done_callback(self._forget)
        if len(self._connections) > self._most:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).transport.abort()
            oldest.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._strangers.pop(task, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            here, peer = map(writer.get_extra_info, ("sockname", "peername"))
            if here and peer and self._admits(here[:2], peer[:2]):
                await self.handle(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # That connection broke, took too long, or sent something malformed.
        finally:
            writer.close()
