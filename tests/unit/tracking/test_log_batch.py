"""What a tracking server is sent, and what is made of its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE

from sparkdl_runner.tracking.run.delivery import (
    RefusedError,
    ServerFailedError,
    ServerUnreachableError,
    TrackingServer,
)


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.server.asked.append((self.path, json.loads(self.rfile.read(size))))
        answer = self.server.answer.encode()
        self.send_response(self.server.code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Server(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.code, self.answer = 200, "{}"
        self.asked: list[tuple[str, Any]] = []
        self.uri = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_one_request_has_it_all_and_numbers_that_json_lacks_are_words(server: Server) -> None:
    values = [0.5, float("inf"), float("-inf"), float("nan")]
    entries = [["metric", "loss", value, 1000 + n, n, {}] for n, value in enumerate(values)]
    entries += [["param", "lr", "0.1"], ["tag", "team", "a"], ["tag", "more", "b"]]
    TrackingServer(server.uri, "r1").log(entries)
    ((path, body),) = server.asked
    assert path == "/api/2.0/mlflow/runs/log-batch"
    assert body == {
        "run_id": "r1",
        "metrics": [
            {"key": "loss", "value": value, "timestamp": 1000 + n, "step": n}
            for n, value in enumerate([0.5, "Infinity", "-Infinity", "NaN"])
        ],
        "params": [{"key": "lr", "value": "0.1"}],
        "tags": [{"key": "team", "value": "a"}, {"key": "more", "value": "b"}],
    }


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, RefusedError),
        (401, ServerUnreachableError),
        (404, ServerUnreachableError),
        (429, ServerUnreachableError),
        (499, RefusedError),
        (500, ServerFailedError),
        (503, ServerUnreachableError),
    ],
)
def test_an_answer_says_whether_to_try_again(
    server: Server, code: int, kind: type[Exception]
) -> None:
    server.code, server.answer = code, "why" + "." * 1000
    with pytest.raises(kind, match=rf"^HTTP {code}: why\.{{497}}$") as told:
        TrackingServer(server.uri, "r1").log([["tag", "a", "b"]])
    assert type(told.value) is kind
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_may_come_back(server: Server) -> None:
    uri = "http://127.0.0.1:1"
    with pytest.raises(ServerUnreachableError, match="refused"):
        TrackingServer(uri, "r1").log([["tag", "a", "b"]])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MlflowException("too long", error_code=INVALID_PARAMETER_VALUE), RefusedError),
        (MlflowException("no answer", error_code=INTERNAL_ERROR), ServerFailedError),
        (OSError("database is locked"), ServerUnreachableError),
    ],
)
def test_an_error_of_a_store_without_a_server_says_whether_to_try_again(
    error: Exception, kind: type[Exception]
) -> None:
    def refuse(run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> None:
        assert (run_id, len(metrics), len(params), len(tags)) == ("r1", 1, 1, 1)
        raise error

    store = TrackingServer("sqlite:///x.db", "r1")
    store._store = SimpleNamespace(log_batch=refuse)
    with pytest.raises(kind, match=str(error)) as told:
        store.log([["metric", "m", 1.0, 0, 0, {}], ["param", "p", "1"], ["tag", "a", "b"]])
    assert type(told.value) is kind
