"""A server that passes everything on to another one, and answers after a delay."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@contextlib.contextmanager
def slow_server(url: str, delay_seconds: float) -> Iterator[str]:
    """Its URL, for as long as the context lasts, in front of the server at ``url``."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port

    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(delay_seconds)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            behind = http.client.HTTPConnection(host, port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            behind.request(self.command, self.path, body, {**headers, "Host": f"{host}:{port}"})
            answer = behind.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", "text/plain"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            behind.close()

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            """Says nothing of requests."""

    class Front(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Says nothing of clients that have gone: MLflow's end with requests on their way."""

    front = Front(("127.0.0.1", 0), Slow)
    front.daemon_threads = True
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{front.server_address[1]}"
    finally:
        front.shutdown()
        front.server_close()
