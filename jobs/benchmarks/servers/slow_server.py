"""Servers in this process, and one that passes on all requests, late, to another server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

MOST_SECONDS = 60
"""Of an answer."""


@contextlib.contextmanager
def served(application: Any, **options: Any) -> Iterator[str]:
    """The URL of a WSGI application, for as long as the context lasts."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, application, threaded=True, **options)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def slow_server(url: str, delay_seconds: float) -> Iterator[str]:
    """Its URL, for as long as the context lasts, in front of the server at ``url``."""
    from werkzeug.exceptions import NotFound
    from werkzeug.middleware.http_proxy import ProxyMiddleware

    target = {"target": url, "host": urlsplit(url).netloc}
    proxy = ProxyMiddleware(NotFound(), {"all": target}, timeout=MOST_SECONDS)

    def late(environ: dict[str, Any], start_response: Any) -> Any:
        time.sleep(delay_seconds)
        # Called itself, it would pass on only what is below a path, and break letters beyond ASCII.
        path = environ["PATH_INFO"].encode("latin-1").decode()
        return proxy.proxy_to(proxy.targets["/all/"], path, "/")(environ, start_response)

    with served(late) as front:
        yield front
