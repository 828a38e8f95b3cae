"""Serves HTTP with raw bytes to Horovod's client, at the store and at each host's copy of it.

One request a connection, ``PUT``, ``GET`` and ``DELETE`` of ``/scope/key``. The secret is the first
part of each path. Horovod's client allows that: its URLs are ``HOROVOD_GLOO_RENDEZVOUS_ADDR``, a
colon, the port, and the path. Beside Horovod's requests there is ``FOLLOW /scope/``, by which a
copy gets all keys of a scope as they come.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from abc import abstractmethod

from sparkdl_runner.launch.wire.serving import ServerThread

MAX_HEADER_BYTES = 8 * 1024
MAX_VALUE_BYTES = 1024 * 1024
REQUEST_SECONDS = 10.0
# How long a GET waits for a key that is not there: Horovod's client asks again every 10 ms else.
WAIT_SECONDS = 1.0
ENTRY = struct.Struct(">HI")
"""Before each key and value that a follower gets: how long they are."""

Answer = tuple[str, bytes]


class KeyValueServer(ServerThread):
    """Answers requests of Horovod's client, only if they contain the secret.

    Args:
        listener: The listening socket whose port was published.
        name: The thread's name.
        peers: The IP addresses that may connect.
        num_proc: How many ranks ask here.
        secret: What a caller must know, in letters and digits.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        name: str,
        peers: frozenset[str],
        num_proc: int,
        secret: str,
    ) -> None:
        super().__init__(listener, name=name, expected=num_proc, peers=peers, own_user_only=True)
        self._prefix = prefix_of(secret, self.address[1])

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        async with asyncio.timeout(REQUEST_SECONDS):
            method, path, length = parse_request(await reader.readuntil(b"\r\n\r\n"))
            own = path[: len(self._prefix)].encode(errors="replace")
            if not hmac.compare_digest(own, self._prefix.encode()):
                raise ValueError("the caller does not know the secret")
            self.recognize()
            body = await reader.readexactly(length) if length <= MAX_VALUE_BYTES else None
        scope, _, key = path[len(self._prefix) :].rpartition("/")
        if method == "FOLLOW":
            await self.follow(scope, writer)
            return
        if body is None:
            status, content = "413 Content Too Large", b""
        else:
            status, content = await self.answer(method, scope, key, body)
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + content
        )
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.drain()

    @abstractmethod
    async def answer(self, method: str, scope: str, key: str, body: bytes) -> Answer:
        """Answers a request.

        Returns:
            The status line's end, and the value.
        """

    async def follow(self, scope: str, writer: asyncio.StreamWriter) -> None:
        """Sends all keys and values of a scope's meeting, as they come, until it is over."""
        raise ValueError("this server cannot be followed")


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


def prefix_of(secret: str, port: int) -> str:
    """The prefix of each path at a server of this port; see ``address_for_ranks``."""
    return f"/{secret}:{port}"


def request(method: str, path: str, body: bytes) -> bytes:
    """Makes a request."""
    return f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Reads the answer to a request that was not ``FOLLOW``."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    return head.partition("\r\n")[0].partition(" ")[2], await reader.read(MAX_VALUE_BYTES)
