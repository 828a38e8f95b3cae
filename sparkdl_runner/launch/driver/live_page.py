"""Shows a running training: as a page on the loopback interface, or in a notebook's cell.

Who knows the page's address may read it: its path holds 256 random bits. The page of another site
does not know it; and a name of its own that leads here (DNS rebinding) is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl_runner.base.notebook import in_notebook
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.driver.live_cell import LiveCell
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.network import LOOPBACK, listen
from sparkdl_runner.launch.wire.serving import ServerThread
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.tracking.report.page import page_of, sections_of
from sparkdl_runner.tracking.report.run_summary import RunSummary
from sparkdl_runner.tracking.run.run_end import status_of
from sparkdl_runner.tracking.run.run_state import RunState

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun

REQUEST_SECONDS = 10.0
# How often a page that somebody looks at is drawn.
DRAW_SECONDS = 1.0
# At the end, a browser between two requests is waited for so long.
LAST_LOOK_SECONDS = 0.3
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HEAD = """HTTP/1.1 {status}
Content-Type: {kind}; charset=utf-8
Content-Length: {size}
Cache-Control: no-store
Connection: close
Cross-Origin-Resource-Policy: same-origin
Referrer-Policy: no-referrer
X-Content-Type-Options: nosniff
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src 'nonce-{nonce}'

"""


class PageServer(ServerThread):
    """Serves the page at ``/TOKEN/``, and its newest content at ``/TOKEN/state``.

    Args:
        summarize: Says how the run stands.
    """

    def __init__(self, summarize: Callable[[], RunSummary]) -> None:
        super().__init__(listen(LOOPBACK), name="sparkdl-page", expected=8)
        self._summarize = summarize
        self._path = f"/{secrets.token_urlsafe(32)}/"
        self._ended = asyncio.Event()
        self._asked_at = 0.0
        self.url = f"http://{LOOPBACK}:{self.address[1]}{self._path}"
        """The page's address, which is a secret."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        async with asyncio.timeout(REQUEST_SECONDS):
            request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
        path = request.partition(" ")[2].partition(" ")[0]
        kind, nonce = "text/html", secrets.token_urlsafe(16)
        hosts = [line[5:].strip() for line in lines if line.lower().startswith("host:")]
        own, name = path[: len(self._path)], path[len(self._path) :]
        knows = hmac.compare_digest(own.encode(), self._path.encode())
        if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in _HOSTS:
            status, text = "403 Forbidden", "This server is not called so."
        elif not knows or name not in ("", "state") or not request.startswith("GET "):
            status, text = "404 Not Found", "There is no such page."
        elif name:
            self.recognize()
            status, kind, text = "200 OK", "application/json", await self._state()
        else:
            self.recognize()
            script = f'<script nonce="{nonce}">{_SCRIPT}</script>\n'
            status, text = "200 OK", page_of(self._summarize(), script)
        content = text.encode(errors="replace")
        head = _HEAD.format(status=status, kind=kind, size=len(content), nonce=nonce)
        writer.write(head.replace("\n", "\r\n").encode() + content)
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.drain()

    async def _state(self) -> str:
        """What the page shows: after a second, or at once when the run has ended."""
        self._asked_at = time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), DRAW_SECONDS)
        return json.dumps([self._ended.is_set(), sections_of(self._summarize())])

    def close(self) -> None:
        """Shows the end to a browser that looks, and stops serving."""
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._ended.set)
            if time.monotonic() < self._asked_at + 3 * DRAW_SECONDS:
                time.sleep(LAST_LOOK_SECONDS)
        super().close()


@contextmanager
def live_page(
    is_wanted: bool, tracked: TrackedRun | None, name: str, hidden: Sequence[str], stop: StopRequest
) -> Iterator[list[Reports]]:
    """Shows a run while it lasts: in a notebook in the cell, elsewhere as a page.

    Yields who takes the ranks' reports for it: nobody if the MLflow run does. Where there is none,
    the run has the ``name``. It shows no secrets of the environment, and none of ``hidden``.
    """
    if not is_wanted:
        yield []
        return
    redact = Redactor([*secrets_of(), *hidden])
    state = RunState(redact(name), redact) if tracked is None else tracked.state
    takers: list[Reports] = [state] if tracked is None else []
    error: BaseException | None = None
    with ExitStack() as stack:
        try:
            if in_notebook():
                takers.append(cell := LiveCell(state.summary))
                stack.callback(cell.draw)
            else:
                server = PageServer(state.summary)
                stack.callback(server.close)
                server.start()
                _tell(server.url, stack)
        except Exception as problem:  # Nobody's training ends for that.
            tell(f"the training is not shown while it runs: {problem!r}")
        try:
            yield takers
        except BaseException as raised:
            error = raised
            raise
        finally:
            state.end(status_of(error, stop.reason), error, stop.reason)


def _tell(url: str, stack: ExitStack) -> None:
    """Prints the address on a terminal. A log may have other readers, so there it is in a file."""
    if sys.stdout is not None and hasattr(sys.stdout, "isatty") and sys.stdout.isatty():
        tell(f"live page: {url}", sys.stdout)
        return
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl_runner-page-"))
    file = Path(folder) / "address"
    file.write_text(f"{url}\n")
    tell(f"the address of the live page, which is a secret, is in {file}", sys.stdout)


# Elements that have not changed stay, so that their text can be marked.
_SCRIPT = """
const main = document.querySelector('main'), made = document.createElement('main');
async function next() {
  try {
    const [hasEnded, sections] = await (await fetch('state')).json();
    made.innerHTML = sections;
    const news = [...made.children], olds = [...main.children];
    if (news.length !== olds.length) main.replaceChildren(...news);
    else olds.forEach((old, at) => old.isEqualNode(news[at]) || old.replaceWith(news[at]));
    document.body.classList.remove('lost');
    if (!hasEnded) setTimeout(next, document.hidden ? 5000 : 0);
  } catch {
    document.body.classList.add('lost');
    setTimeout(next, 5000);
  }
}
next();
"""
