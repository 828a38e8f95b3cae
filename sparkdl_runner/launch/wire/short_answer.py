"""Asks an HTTP server for something small: its answer is bounded in bytes and in total time."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple


class Answer(NamedTuple):
    """A server's answer."""

    status: int
    body: bytes
    """No more than was asked for."""


def ask(
    host: str,
    port: int,
    path: str,
    *,
    most_seconds: float,
    most_bytes: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Asks, without a proxy, and follows no redirection.

    Args:
        host: The server's name or address.
        port: Its port.
        path: What to ask for.
        most_seconds: How long a connection may take, and how long all of the answer. What has come
            of a body by then is the body.
        most_bytes: How much of the body to read.
        method: Of the request.
        headers: Of the request.

    Raises:
        OSError: The server is not reached, or its head takes too long.
        HTTPException: Its answer is no HTTP.
    """
    connection = http.client.HTTPConnection(host, port, timeout=most_seconds)
    connection.connect()
    # The connection's own limit is for each byte that comes; this one is for the whole answer.
    end = threading.Timer(most_seconds, _shut, [connection.sock])
    end.daemon = True
    end.start()
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.read(most_bytes))
    finally:
        end.cancel()
        end.join()
        connection.close()


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
