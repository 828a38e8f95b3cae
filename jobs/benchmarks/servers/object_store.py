"""An S3 server that is as far away as a real one: it answers late, at times with an error."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

BUCKET = "tables"
_SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
Refusal = tuple[int, str, str]
"""An error's HTTP status, S3 code and message."""
_Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and content."""
# Headers of one connection, which are not forwarded.
_OF_A_LINK = ("transfer-encoding", "content-length", "expect", "connection")
_LEFT_OUT = ("connection", "date", "server", "transfer-encoding", "content-length")


@dataclass(kw_only=True)
class ObjectStore:
    """A running server.

    Requests pass through a front, which waits, counts and refuses. It remembers what it answered:
    the server behind it is slow Python, which would take the cores of the readers.
    """

    behind: str
    """The server itself, without delays: where to put objects."""
    delay_seconds: float
    refuses: Callable[[int, str, str], Refusal | None] = lambda number, kind, path: None
    """Called with a request's number, from 0, its kind and path; what to answer in its place."""
    url: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests so far by kind: GET, HEAD, LIST, PUT and so on, and ``refused``."""
    remembers: bool = True
    """Whether a request is answered as it was before; not where several write at once."""
    _remembered: dict[tuple[str, str, str | None], _Answer] = field(default_factory=dict)

    def options(self, url: str | None = None) -> dict[str, Any]:
        """The arguments of ``pyarrow.fs.S3FileSystem`` to reach the front, or the server itself."""
        return {
            "access_key": "reader",
            "secret_key": "reader",
            "endpoint_override": url or self.url,
            "region": "us-east-1",
        }

    def environment(self) -> dict[str, str]:
        """The variables by which boto3, LitData and mosaicml-streaming reach the front."""
        keys = dict.fromkeys(["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "reader")
        urls = dict.fromkeys(["AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"], self.url)
        return {**keys, **urls, "AWS_DEFAULT_REGION": "us-east-1"}

    def forget(self) -> None:
        """Answers anew, since objects were put past the front."""
        self._remembered.clear()

    def upload(self, folder: Path) -> str:
        """Puts a folder into the bucket, past the front's delays and errors; returns its URL."""
        from pyarrow import fs

        behind = fs.S3FileSystem(**self.options(self.behind), allow_bucket_creation=True)
        behind.create_dir(BUCKET)
        for path in filter(Path.is_file, folder.rglob("*")):
            # Not by copy_files, which keeps the interpreter from the server in this process.
            target = f"{BUCKET}/{folder.name}/{path.relative_to(folder)}"
            with path.open("rb") as source, behind.open_output_stream(target) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
        self.forget()
        return self.url_of(folder)

    def url_of(self, folder: Path) -> str:
        """Where a folder is, once it was put there."""
        return f"s3://{BUCKET}/{folder.name}"


def every(count: int | None, refusal: Refusal = _SLOW_DOWN) -> Callable[..., Refusal | None]:
    """Refuses one request in ``count``; none where that is None."""
    return lambda number, *_: refusal if count and number % count == count - 1 else None


@contextlib.contextmanager
def object_store(delay_seconds: float = 0.0, *, remembers: bool = True) -> Iterator[ObjectStore]:
    """Runs a server and its front in this process, for as long as the context lasts."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    store = ObjectStore(
        behind=f"http://{host}:{port}", delay_seconds=delay_seconds, remembers=remembers
    )
    front = ThreadingHTTPServer(("127.0.0.1", 0), _front(store))
    front.daemon_threads = True
    threading.Thread(target=front.serve_forever, daemon=True).start()
    store.url = f"http://127.0.0.1:{front.server_address[1]}"
    try:
        yield store
    finally:
        front.shutdown()
        front.server_close()
        server.stop()


def _front(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    address = urlsplit(store.behind).netloc
    numbers = itertools.count()
    remembered = store._remembered

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self._body()
            parts = urlsplit(self.path)
            is_list = self.command == "GET" and "list-type" in parse_qs(parts.query)
            kind = "LIST" if is_list else self.command
            store.counts[kind] += 1
            refusal = store.refuses(next(numbers), kind, parts.path)
            time.sleep(store.delay_seconds)
            if refusal is not None:
                store.counts["refused"] += 1
                status, code, message = refusal
                text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
                self._answer(status, [("Content-Type", "application/xml")], text.encode())
            elif kind in ("GET", "HEAD") and store.remembers:
                key = (self.command, self.path, self.headers.get("Range"))
                if key not in remembered:
                    remembered[key] = self._ask(body)
                self._answer(*remembered[key])
            else:
                if kind != "LIST":
                    remembered.clear()
                self._answer(*self._ask(body))

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body

        def _ask(self, body: bytes) -> _Answer:
            behind = http.client.HTTPConnection(address, timeout=60)
            sent = {k: v for k, v in self.headers.items() if k.lower() not in _OF_A_LINK}
            behind.request(self.command, self.path, body, sent)
            answer = behind.getresponse()
            content = answer.read()
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _LEFT_OUT]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.getheader("Content-Length", "0")))
            behind.close()
            return answer.status, headers, content

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if "Content-Length" not in dict(headers):  # Of a HEAD it is that of the object.
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing of requests."""

    return Front
