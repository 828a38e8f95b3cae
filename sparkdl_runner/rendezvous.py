"""The key-value store through which Horovod's ranks find one another.

Horovod's C++ side (``http_store.cc`` of 0.28.1) speaks HTTP: ``PUT /scope/key`` with raw bytes,
``GET`` of the same (404 until the key is there; it asks again every 10 ms), ``DELETE`` of
``/scope/rank`` when a rank has finished with a scope. One request a connection. The values are
opaque here: nothing is ever unpickled, unlike in Horovod's own servers (CVE-2024-10190).
"""

from __future__ import annotations

import asyncio
import socket

from sparkdl_runner.serving import ServerThread

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
    """

    def __init__(self, listener: socket.socket, peers: frozenset[str]) -> None:
        super().__init__(listener, name="sparkdl-rendezvous", max_connections=4096)
        self._peers = peers
        self._values: dict[str, bytes] = {}
        self._size_bytes = 0

    def admits(self, peer_address: str) -> bool:
        """Only hosts of this run."""
        return peer_address in self._peers

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        async with asyncio.timeout(REQUEST_SECONDS):
            method, path, length = parse_request(await reader.readuntil(b"\r\n\r\n"))
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
        if method == "GET":
            value = self._values.get(path)
            return ("404 Not Found", b"") if value is None else ("200 OK", value)
        if method == "PUT":
            size_bytes = self._size_bytes + len(body) - len(self._values.get(path, b""))
            is_one_too_many = path not in self._values and len(self._values) >= MAX_KEYS
            if size_bytes > MAX_STORE_BYTES or is_one_too_many:
                return "507 Insufficient Storage", b""
            self._values[path] = body
            self._size_bytes = size_bytes
            return "200 OK", b""
        if method == "DELETE":
            # A rank says that it is done with a scope. The keys stay: they are few, and a rank
            # that is late may still read them.
            return "200 OK", b""
        return "405 Method Not Allowed", b""


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
