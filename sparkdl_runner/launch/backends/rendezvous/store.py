"""The key-value store through which Horovod's ranks find one another.

Horovod's C++ side (``http_store.cc`` of 0.28.1) speaks HTTP: ``PUT /scope/key`` with raw bytes,
``GET`` of the same (after a 404 it asks again), ``DELETE`` of
``/scope/rank`` when a rank has finished with a scope. One request a connection. The values are
opaque here: nothing is ever unpickled, unlike in Horovod's own servers (CVE-2024-10190).

A caller must come from one of the run's hosts and know the attempt's secret; on this host it must
also run as our own user. The secret is the first part of each path. Horovod's client allows that:
its URLs are ``HOROVOD_GLOO_RENDEZVOUS_ADDR``, a colon, the port, and the path.

A scope holds ``rank_K`` and ``K`` of each of its ranks. ``hvd.shutdown(); hvd.init()`` uses the
same scopes again, so the keys of one meeting must be gone before the next. Else a rank would
connect to sockets that are closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from sparkdl_runner.launch.backends import Release, Rendezvous, Tell
from sparkdl_runner.launch.backends.listeners import Listeners
from sparkdl_runner.launch.backends.rendezvous.server import (
    ENTRY,
    WAIT_SECONDS,
    Answer,
    KeyValueServer,
)

MAX_STORE_BYTES = 256 * 1024 * 1024
# Of the global scope each rank's value takes 136 for each other rank; other scopes take less.
BYTES_PER_PAIR = 512
MAX_KEYS = 1_000_000


class _Meeting:
    """The entries of a scope since its last meeting, for the copies that follow it."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes]] = []
        self.is_over = False
        self.changed = asyncio.Event()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class RendezvousStore(KeyValueServer):
    """Serves the store on a listening socket, to the run's peers alone.

    It stays up for the whole run: process sets made later meet here too.

    Args:
        listener: The listening socket whose port was published.
        peers: The IP addresses that may connect.
        num_proc: How many ranks there are.
        secret: What a caller must know, in letters and digits.
        tell: Takes a sentence on what a process that is no rank did, or on a refusal.
    """

    def __init__(
        self,
        listener: socket.socket,
        peers: frozenset[str],
        *,
        num_proc: int,
        secret: str,
        tell: Tell,
    ) -> None:
        super().__init__(
            listener, name="sparkdl-rendezvous", peers=peers, num_proc=num_proc, secret=secret
        )
        self._most_bytes = max(MAX_STORE_BYTES, BYTES_PER_PAIR * num_proc**2)
        self._num_proc = num_proc
        self._tell = tell
        self._scopes: dict[str, dict[str, bytes | None]] = {}
        """None is the value of a rank that has not yet finished the previous meeting."""
        self._meetings: dict[str, _Meeting] = {}
        self._has_written = asyncio.Event()
        """Set, and replaced by another, when a value comes."""
        self._num_keys = 0
        self._size_bytes = 0

    async def follow(self, scope: str, writer: asyncio.StreamWriter) -> None:
        """See ``KeyValueServer``."""
        meeting = self._meetings.setdefault(scope, _Meeting())
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        sent = 0
        while not meeting.is_over:
            for key, value in meeting.entries[sent:]:
                writer.write(ENTRY.pack(len(key), len(value)) + key.encode("ascii") + value)
                await writer.drain()
                sent += 1
            if sent == len(meeting.entries) and not meeting.is_over:
                await meeting.changed.wait()

    async def answer(self, method: str, scope: str, key: str, body: bytes) -> Answer:
        """See ``KeyValueServer``."""
        if method == "GET":
            return await self._read(scope, key)
        if method == "PUT":
            if self._scopes.get(scope, {}).get(key, body) not in (None, body):
                self._tell(
                    f"sparkdl_runner: Somebody wrote {scope}/{key} of the rendezvous a second "
                    "time, with another value. No rank does that, so it was tampered with: do not "
                    "trust this run, and look for who else runs processes of this user on its "
                    "hosts."
                )
                return "409 Conflict", b""
            return ("200 OK" if self._put(scope, key, body) else "507 Insufficient Storage"), b""
        if method == "DELETE":
            self._finish(scope, key)
            return "200 OK", b""
        return "405 Method Not Allowed", b""

    async def _read(self, scope: str, key: str) -> Answer:
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while (value := self._scopes.get(scope, {}).get(key)) is None:
                    await self._has_written.wait()
                return "200 OK", value
        return "404 Not Found", b""

    def _put(self, scope: str, key: str, value: bytes) -> bool:
        """Stores a value. Returns whether there is room for it."""
        values = self._scopes.get(scope, {})
        size_bytes = self._size_bytes + len(value) - len(values.get(key) or b"")
        num_keys = self._num_keys + (key not in values)
        if size_bytes > self._most_bytes or num_keys > MAX_KEYS:
            self._tell(
                f"sparkdl_runner: Horovod's rendezvous is full: {self._num_proc:,} ranks have "
                f"{self._most_bytes:,} bytes and {MAX_KEYS:,} keys, and more were written. Ranks "
                "that are refused end with SIGABRT. Use fewer process sets, or the torch backend, "
                "which has no such limit."
            )
            return False
        meeting = self._meetings.setdefault(scope, _Meeting())
        meeting.entries.append((key, value))
        meeting.tell()
        self._scopes.setdefault(scope, {})[key] = value
        self._has_written.set()
        self._has_written = asyncio.Event()
        self._size_bytes, self._num_keys = size_bytes, num_keys
        return True

    def _finish(self, scope: str, rank: str) -> None:
        """Ends a scope's meeting with the first rank that has finished.

        A rank finishes behind a barrier of all ranks of the scope, so no other has anything left
        to read. The others' DELETE comes later, perhaps when the next meeting has begun.
        """
        values = self._scopes.get(scope, {})
        if rank not in values:
            return
        left: dict[str, bytes | None]
        if values[rank] is None:
            left = {key: value for key, value in values.items() if key != rank}
        else:
            left = {key: None for key in values if key != rank and not key.startswith("rank_")}
            self._size_bytes -= sum(len(value) for value in values.values() if value)
            if meeting := self._meetings.pop(scope, None):
                meeting.is_over = True
                meeting.tell()
        self._num_keys -= len(values) - len(left)
        self._scopes[scope] = left
        if not left:
            del self._scopes[scope]


def serve(listeners: Listeners, rendezvous: Rendezvous, tell: Tell) -> Release:
    """Serves a store; see ``Backend.serve``."""
    store = RendezvousStore(
        listeners.public,
        rendezvous.peers,
        num_proc=rendezvous.num_proc,
        secret=rendezvous.secret,
        tell=tell,
    )
    store.start()
    return store.close
