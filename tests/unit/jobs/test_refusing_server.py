"""A tracking server that refuses is told before data are converted."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.tracking import Tracking


class Refusing(http.server.BaseHTTPRequestHandler):
    """It is there, and knows none of its users."""

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        body = json.dumps({"error_code": "PERMISSION_DENIED", "message": "no such user"}).encode()
        self.send_response(200 if is_health else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


def test_it_refuses_to_look_for_the_experiment(server: str) -> None:
    with pytest.raises(ConfigError, match="no such user"):
        mlflow_run.use(Tracking(tracking_uri=server, experiment="digits"))
