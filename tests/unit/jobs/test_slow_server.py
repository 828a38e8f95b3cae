"""The server of the benchmarks that passes on all requests, late."""

from __future__ import annotations

import http.client
import json
from itertools import product

from benchmarks.servers.slow_server import served, slow_server
from werkzeug.wrappers import Request, Response


@Request.application
def echo(request: Request) -> Response:
    """Answers with what it was asked."""
    asked = [request.method, request.full_path, request.get_data(as_text=True), request.host]
    headers = {"Content-Type": "application/json", "X-Token": request.headers.get("X-Token", "")}
    return Response(json.dumps(asked), 200 if request.path != "/gone" else 404, headers)


def ask(url: str, method: str, path: str, body: str | None = None) -> tuple[int, str, list[str]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body and body.encode(), {"X-Token": "one"})
        answer = connection.getresponse()
        return answer.status, answer.headers["X-Token"], json.loads(answer.read())
    finally:
        connection.close()


def test_requests_and_answers_are_passed_on_as_they_are():
    paths = ["/", "/api/2.0/mlflow?a=1&b=x%20y", "/folder/a%20b%C3%BC.txt"]
    requests = [("GET", None), ("POST", '{"ü": 1}'), ("PUT", "x" * 100_000), ("DELETE", None)]
    with served(echo) as behind, slow_server(behind, 0.0) as front:
        for path, (method, body) in product(paths, requests):
            assert ask(front, method, path, body) == ask(behind, method, path, body)
        assert ask(front, "GET", "/gone")[0] == 404
