"""An S3 server that is as far away as a real one: it answers late, at times with an error."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers.slow_server import served

BUCKET = "tables"
_SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
Refusal = tuple[int, str, str]
"""An error's HTTP status, S3 code and message."""


@dataclass(kw_only=True)
class ObjectStore:
    """A running server.

    moto answers at two addresses. At the second one requests wait, are counted and refused, and
    what was answered is remembered: moto is slow Python, which would take the cores of the readers.
    """

    delay_seconds: float
    refuses: Callable[[int, str, str], Refusal | None] = lambda number, kind, path: None
    """Called with a request's number, from 0, its kind and path; what to answer in its place."""
    url: str = ""
    behind: str = ""
    """The address without delays: where to put objects."""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests so far by kind: GET, HEAD, LIST, PUT and so on, and ``refused``."""
    remembers: bool = True
    """Whether a request is answered as it was before; not where several write at once."""
    _remembered: dict[tuple[str, ...], Any] = field(default_factory=dict)

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

    def forget(self, url: str = "") -> None:
        """Answers anew what is below a URL, since objects were put there past the front."""
        below = f"/{url.partition('://')[2]}"
        for key in [one for one in list(self._remembered) if one[1].startswith(below)]:
            self._remembered.pop(key, None)

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
        url = self.url_of(folder)
        self.forget(url)
        return url

    def url_of(self, folder: Path) -> str:
        """Where a folder is, once it was put there."""
        return f"s3://{BUCKET}/{folder.name}"


def every(count: int | None, refusal: Refusal = _SLOW_DOWN) -> Callable[..., Refusal | None]:
    """Refuses one request in ``count``; none where that is None."""
    return lambda number, *_: refusal if count and number % count == count - 1 else None


@contextlib.contextmanager
def object_store(delay_seconds: float = 0.0, *, remembers: bool = True) -> Iterator[ObjectStore]:
    """Runs a server in this process, for as long as the context lasts."""
    from moto.moto_server import werkzeug_app

    moto = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)
    store = ObjectStore(delay_seconds=delay_seconds, remembers=remembers)
    how = {"request_handler": werkzeug_app.MotoRequestHandler}
    with served(moto, **how) as store.behind, served(_front(store, moto), **how) as store.url:
        yield store


def _front(store: ObjectStore, moto: Any) -> Callable[..., Any]:
    from werkzeug.wrappers import Request, Response

    numbers = itertools.count()

    @Request.application
    def answer(request: Request) -> Response:
        is_list = request.method == "GET" and "list-type" in request.args
        kind = "LIST" if is_list else request.method
        store.counts[kind] += 1
        refusal = store.refuses(next(numbers), kind, request.path)
        time.sleep(store.delay_seconds)
        if refusal is not None:
            store.counts["refused"] += 1
            status, code, message = refusal
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            return Response(text, status, content_type="application/xml")
        key = (request.method, request.full_path, request.headers.get("Range", ""))
        found: Response | None = store._remembered.get(key)
        if found is None:
            found = Response.from_app(moto, request.environ, buffered=True)
            if kind in ("GET", "HEAD") and store.remembers:
                store._remembered[key] = found
            elif kind != "LIST":
                store.forget()
        return found

    return answer
