"""EC2's instance metadata service, IMDSv2: a token by PUT, without which GET is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACTION = "/latest/meta-data/spot/instance-action"
NOTICE = {"action": "terminate", "time": "2026-11-23T21:00:00Z"}
NO_HTTP = b"SSH-2.0"
"""An answer that is sent without a status line."""


class MetadataService(ThreadingHTTPServer):
    """The service of one instance."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self.answers: list[bytes | int] = []
        """Answers to the next requests for a notice: bytes or an error each; 404 after the last."""
        self.tokens: set[str] = set()
        """Those that are valid."""
        self.given = 0
        self.asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "0")
        if self.path != "/latest/api/token" or not 1 <= int(seconds) <= 21600:
            return self._answer(400)
        self.server.given += 1
        token = f"token-{self.server.given}"
        self.server.tokens.add(token)
        return self._answer(200, token.encode())

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            return self._answer(401)
        if self.path != ACTION:
            return self._answer(404)
        self.server.asked += 1
        answer = self.server.answers.pop(0) if self.server.answers else 404
        if answer == NO_HTTP:
            self.wfile.write(NO_HTTP)
            return None
        return self._answer(answer) if isinstance(answer, int) else self._answer(200, answer)

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Serves until the end of the block."""
    service = MetadataService()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def notice() -> bytes:
    """A notice as the service gives it."""
    return json.dumps(NOTICE).encode()
