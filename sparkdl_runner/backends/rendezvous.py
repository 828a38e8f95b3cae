"""The key-value store through which Horovod's ranks find one another.

Horovod's C++ side (``http_store.cc`` of 0.28.1) speaks HTTP: ``PUT /scope/key`` with raw bytes,
``GET`` of the same (404 until the key is there; it asks again every 10 ms), ``DELETE`` of
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
import hmac
import socket

from sparkdl_runner.backends import Release, Rendezvous, Tell
from sparkdl_runner.backends.doors import Doors
from sparkdl_runner.wire import network
from sparkdl_runner.wire.serving import ServerThread

MAX_HEADER_BYTES = 8 * 1024
MAX_VALUE_BYTES = 1024 * 1024
MAX_STORE_BYTES = 256 * 1024 * 1024
MAX_KEYS = 1_000_000
REQUEST_SECONDS = 10.0


class RendezvousStore(ServerThread):
    """Serves the store on a listening socket, to the run's peers alone.

    It stays up for the whole run: process sets made later meet here too.

    Args:
        listener: The listening socket whose port was published.
        peers: The IP addresses that may connect.
        num_proc: How many ranks there are.
        secret: What a caller must know, in letters and digits.
        tell: Takes a sentence on what a process that is no rank did.
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
            listener, name="sparkdl-rendezvous", expected=num_proc, peers=peers, own_user_only=True
        )
        self._prefix = f"/{secret}:{self.address[1]}"
        self._tell = tell
        self._scopes: dict[str, dict[str, bytes | None]] = {}
        """None is the value of a rank that has not yet finished the previous meeting."""
        self._num_keys = 0
        self._size_bytes = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        async with asyncio.timeout(REQUEST_SECONDS):
            method, path, length = parse_request(await reader.readuntil(b"\r\n\r\n"))
            own = path[: len(self._prefix)].encode(errors="replace")
            if not hmac.compare_digest(own, self._prefix.encode()):
                raise ValueError("the caller does not know the secret")
            self.recognize()
            path = path[len(self._prefix) :]
            if length > MAX_VALUE_BYTES:
                status, body = "413 Content Too Large", b""
            else:
                status, body = self._answer(method, path, await reader.readexactly(length))
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()

    def _answer(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        scope, _, key = path.rpartition("/")
        if method == "GET":
            value = self._scopes.get(scope, {}).get(key)
            return ("404 Not Found", b"") if value is None else ("200 OK", value)
        if method == "PUT":
            if self._scopes.get(scope, {}).get(key, body) not in (None, body):
                self._tell(
                    f"sparkdl_runner: Somebody wrote {path} of the rendezvous a second time, with "
                    "another value. No rank does that, so it was tampered with: do not trust this "
                    "run, and look for who else runs processes of this user on its hosts."
                )
                return "409 Conflict", b""
            stored = self._put(scope, key, body)
            return ("200 OK" if stored else "507 Insufficient Storage"), b""
        if method == "DELETE":
            self._finish(scope, key)
            return "200 OK", b""
        return "405 Method Not Allowed", b""

    def _put(self, scope: str, key: str, value: bytes) -> bool:
        """Stores a value. Returns whether there is room for it."""
        values = self._scopes.get(scope, {})
        size_bytes = self._size_bytes + len(value) - len(values.get(key) or b"")
        num_keys = self._num_keys + (key not in values)
        if size_bytes > MAX_STORE_BYTES or num_keys > MAX_KEYS:
            return False
        self._scopes.setdefault(scope, {})[key] = value
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
        self._num_keys -= len(values) - len(left)
        self._scopes[scope] = left
        if not left:
            del self._scopes[scope]


def listen(address: str) -> Doors:
    """Opens, in rank 0's agent, the socket that the store is served on."""
    return Doors(network.listen(address))


def serve(doors: Doors, rendezvous: Rendezvous, tell: Tell) -> Release:
    """Serves a store; see ``Backend.serve``."""
    store = RendezvousStore(
        doors.public,
        rendezvous.peers,
        num_proc=rendezvous.num_proc,
        secret=rendezvous.secret,
        tell=tell,
    )
    store.start()
    return store.close


def parse_request(head: bytes) -> tuple[str, str, int]:
    """Reads the head of an HTTP request.

    Args:
        head: All up to and with the blank line.

    Returns:
        The method, the path, and the length of the body.

    Raises:
        ValueError: It is no such head, or too long.
    """
    if len(head) > MAX_HEADER_BYTES:
        raise ValueError("the request's head is too long")
    request_line, *header_lines = head.decode("ascii").split("\r\n")
    method, path, version = request_line.split(" ")
    if not version.startswith("HTTP/1.") or not path.startswith("/"):
        raise ValueError("not an HTTP request")
    length = 0
    for line in header_lines:
        name, separator, value = line.partition(":")
        if separator and name.strip().lower() == "content-length":
            if not value.strip().isdigit():
                raise ValueError("the content length is not a number")
            length = int(value.strip())
    return method, path, length
