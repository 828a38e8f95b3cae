"""A training whose MLflow server has a private certificate, wants a token and is behind a proxy."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from benchmarks.servers.tracking_server import TrackingServer

from private_certificate import speak_https
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

TOKEN = "opens-the-door"


class Front(BaseHTTPRequestHandler):
    """Passes on what shows the token."""

    server: Any
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.shown.add(self.headers.get("Authorization"))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        behind = http.client.HTTPConnection(self.server.behind, timeout=60)
        behind.request(self.command, self.path, body, dict(self.headers.items()))
        answer = behind.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", ""))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        behind.close()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Proxy(BaseHTTPRequestHandler):
    """Connects its clients with servers, and does not see what they say."""

    server: Any

    def do_CONNECT(self) -> None:
        host, _, port = self.path.partition(":")
        self.server.shown.add(self.path)
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: there, there: self.connection}
            with contextlib.suppress(OSError):
                while True:
                    for end in select.select(list(ends), [], [], 60)[0]:
                        if not (data := end.recv(65536)):
                            return
                        ends[end].sendall(data)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], certificate_in: Path | None) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.shown, server.certificate = True, set(), ""
    if certificate_in is not None:
        server.certificate = speak_https(server, certificate_in)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    running = TrackingServer(tmp_path_factory.mktemp("mlflow"))
    running.start()
    try:
        with serving(Front, tmp_path_factory.mktemp("certificate")) as server:
            server.behind = urlsplit(running.url).netloc
            yield server
    finally:
        running.stop()


def train() -> dict[str, str]:
    import mlflow
    import torch.distributed as dist

    from sparkdl_runner import current_world
    from sparkdl_runner.tracking import log_metrics

    dist.init_process_group("gloo")
    log_metrics(1, loss=0.5)
    run = mlflow.active_run()
    if current_world().rank == 0:
        mlflow.log_text("kept", "note.txt")
    dist.barrier()
    # Each rank reads by itself.
    name = mlflow.MlflowClient().get_run(run.info.run_id).info.status
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    dist.destroy_process_group()
    return {"statuses": " ".join(map(str, names))}


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE"])
def test_certificate_token_and_proxy_are_mlflows(front, monkeypatch, capsys, variable) -> None:
    import mlflow

    uri = f"https://127.0.0.1:{front.server_address[1]}"
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, front.certificate)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    front.shown.clear()
    with serving(Proxy, None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_address[1]}")
        config = RunConfig(tracking=Tracking(tracking_uri=uri, system_metrics=False))
        runner = DistributedRunner(num_proc=-2, backend="torch", run_config=config)
        assert runner.run(train) == {"statuses": "RUNNING RUNNING"}
        client = mlflow.MlflowClient(tracking_uri=uri)
        run = client.get_run(str(runner.mlflow_run_id))
        files = {one.path for one in client.list_artifacts(run.info.run_id)}
        assert proxy.shown == {f"127.0.0.1:{front.server_address[1]}"}
    assert (run.info.status, run.data.metrics["loss"]) == ("FINISHED", 0.5)
    assert {"note.txt", "report"} <= files
    # To ask whether a server is there needs no token.
    assert front.shown - {None} == {f"Bearer {TOKEN}"}
    assert TOKEN not in capsys.readouterr().out
