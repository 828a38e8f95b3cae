"""Whether a tracking server is there, and what is said if it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from private_certificate import speak_https
from sparkdl_runner.tracking.run import server as server_module
from sparkdl_runner.tracking.run.server import wait_for_server

why_unreachable = partial(server_module.why_unreachable, timeout_seconds=120.0)


class Health(BaseHTTPRequestHandler):
    """Answers with the server's next status code; the last one stays."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Server(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Health)
        self.codes = [200]
        self.asked: list[str] = []
        self.address = f"127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize("code", [200, 401, 404])
def test_a_server_that_answers_is_there_even_if_it_does_not_know_us(
    server: Server, code: int
) -> None:
    server.codes = [code]
    assert why_unreachable(f"http://{server.address}/base/") is None
    assert server.asked == ["/base/health"]


def test_a_server_that_is_not_there_or_fails_is_told_without_its_password(server: Server) -> None:
    server.codes = [503]
    told = why_unreachable(f"http://me:pass-word@{server.address}")
    assert told is not None
    assert told.endswith(" answers HTTP 503")
    assert "pass-word" not in told
    nowhere = "http://127.0.0.1:9"
    told = why_unreachable(nowhere)
    assert told is not None
    assert told.startswith(f"{nowhere} does not answer: ")


@pytest.mark.parametrize("uri", ["sqlite:////x.db", "file:///x", "./mlruns", "postgresql://h/db"])
def test_what_is_no_plain_server_only_mlflow_can_ask(uri: str) -> None:
    assert why_unreachable(uri) is None


def test_a_server_is_waited_for_until_time_is_up(server: Server) -> None:
    uri = f"http://{server.address}"
    server.codes = [503, 503, 200]
    assert wait_for_server(uri, 120, asked_every=0.01) is None
    assert len(server.asked) == 3
    server.codes = [503]
    assert wait_for_server(uri, 0.05, asked_every=0.01) == f"{uri} answers HTTP 503"


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE"])
def test_a_private_certificate_counts_as_it_does_for_mlflows_client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    certificate = speak_https(server, tmp_path)
    uri = f"https://{server.address}"
    told = why_unreachable(uri)
    assert told is not None
    assert "does not answer: [SSL: CERTIFICATE_VERIFY_FAILED]" in told
    assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in told
    monkeypatch.setenv(variable, certificate)
    assert why_unreachable(uri) is None


def test_a_server_that_demands_a_certificate_and_a_proxy_in_its_way(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = speak_https(server, tmp_path, demands_certificate=True)
    uri = f"https://{server.address}"
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", certificate)
    told = why_unreachable(uri)
    assert told is not None
    assert told.endswith("a certificate of its clients (MLFLOW_TRACKING_CLIENT_CERT_PATH)")
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(tmp_path / "client.pem"))
    assert why_unreachable(uri) is None
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    told = why_unreachable(uri)
    assert told is not None
    assert "that is the proxy (HTTPS_PROXY)" in told
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert why_unreachable(uri) is None
