"""A server whose answers never end, and may come byte by byte."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

MOST_BYTES = 64 << 20


class Hostile:
    """Sends a beginning, then the same piece again and again, until the other side is gone."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.beginning, self.piece, self.pause_seconds = b"HTTP/1.1 200 OK\r\n", b"", 0.0
        self.sent_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(self.beginning)
                while not self._is_over.wait(self.pause_seconds) and self.sent_bytes < MOST_BYTES:
                    connection.sendall(self.piece)
                    self.sent_bytes += len(self.piece)

    def close(self) -> None:
        self._is_over.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()
