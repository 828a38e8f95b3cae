"""The live page: who may read it, what it is made of, and that nothing of it stays."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from screen import Screen
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.errors import RunCancelledError
from sparkdl_runner.launch.driver import live_cell, live_page
from sparkdl_runner.launch.driver.live_page import PageServer
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tracking.run.run_state import RunState

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
)[0]
WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("IPython", "dbruntime"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def state() -> RunState:
    return RunState("train", Redactor())


@pytest.fixture
def server(state: RunState) -> Iterator[PageServer]:
    made = PageServer(state.summary)
    made.start()
    yield made
    made.close()


def ask(
    server: PageServer, path: str | None = None, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(*server.address, timeout=WAIT_SECONDS)
    try:
        connection.request(
            method, urlsplit(server.url).path if path is None else path, None, headers
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_a_page_that_needs_nothing_else_and_runs_its_own_script_alone(
    server: PageServer, state: RunState
) -> None:
    state.seen.name = "<script>alert(1)</script>"
    state.printed(WORLD, ["<img src=x onerror=alert(2)>"])
    status, headers, text = ask(server)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    (nonce,) = re.findall(r"script-src 'nonce-([\w-]+)'", policy)
    assert re.findall("<script[^>]*>", text) == [f'<script nonce="{nonce}">']
    assert "<img" not in text
    assert nonce not in ask(server)[1]["Content-Security-Policy"]
    assert not any(name.lower().startswith("access-control") for name in headers)
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_who_does_not_know_the_address_reads_nothing(server: PageServer) -> None:
    path = urlsplit(server.url).path
    assert len(path) > 40
    others = ("/", "/state", path[:-2], f"{path[:-3]}x/", f"{path}other", f"{path}../", f"/x{path}")
    for other in others:
        status, _, text = ask(server, other)
        assert (status, text) == (404, "There is no such page."), other
    for method in ("POST", "PUT", "OPTIONS", "HEAD"):
        assert ask(server, method=method)[0] == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:{}", 200), ("localhost:{}", 200), ("localhost:8000", 200)),
        *(("evil.example:{}", 403), ("127.0.0.1.evil.example:{}", 403), ("", 403)),
        ("10.0.0.1:{}", 403),
    ],
)
def test_a_name_that_a_stranger_leads_here_is_refused(
    server: PageServer, host: str, status: int
) -> None:
    """DNS rebinding: the page of another site would be one of this origin."""
    assert ask(server, Host=host.format(server.address[1]))[0] == status


def test_a_malformed_request_ends_its_own_connection_alone(server: PageServer) -> None:
    for sent in (b"\r\n\r\n", b"GET /\r\n\r\n", b"\xff\xfe\r\n\r\n", b"G" * 100_000):
        with socket.create_connection(server.address, WAIT_SECONDS) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert not connection.recv(100).startswith(b"HTTP/1.1 200")
    assert ask(server)[0] == 200


def test_it_listens_on_the_loopback_interface_alone_and_each_run_has_its_own(
    server: PageServer, state: RunState
) -> None:
    other = PageServer(state.summary)
    other.start()
    try:
        assert server.address[0] == other.address[0] == "127.0.0.1"
        assert server.address[1] != other.address[1]
        assert ask(other, urlsplit(server.url).path)[0] == 404
    finally:
        other.close()
    assert ask(server)[0] == 200


def test_a_browser_that_looks_is_shown_the_end(state: RunState) -> None:
    server = PageServer(state.summary)
    server.start()
    place = f"{urlsplit(server.url).path}state"
    has_ended, sections = json.loads(ask(server, place)[2])
    assert not has_ended
    assert "<h1>train: running</h1>" in sections
    found: list[Any] = []
    looking = threading.Thread(target=lambda: found.append(json.loads(ask(server, place)[2])))
    looking.start()
    state.end("FINISHED", None, "")
    server.close()
    looking.join()
    assert found[0][0]
    assert "<h1>train: finished</h1>" in found[0][1]


def test_who_hangs_on_the_line_does_not_keep_the_run_from_ending(server: PageServer) -> None:
    with socket.create_connection(server.address) as connection:
        connection.sendall(b"GET / HTTP")
        server.close()


def shown(tracked: Any = None, hidden: Any = ()) -> Any:
    return live_page.live_page(True, tracked, "train", hidden, StopRequest())


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "finished"), (ValueError("x"), "failed"), (KeyboardInterrupt(), "ended early")],
)
def test_nothing_stays_however_the_run_ends(
    error: BaseException | None, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)) if error else pytest.MonkeyPatch.context(), shown() as takers:
        (state,) = takers
        told = capsys.readouterr().out
        file = Path(re.findall(r"is in (\S+)\n", told)[0])
        assert file.parent.stat().st_mode & 0o777 == 0o700
        url = file.read_text().strip()
        assert "http" not in told, "a log has other readers"
        address = urlsplit(url)
        if error is not None:
            raise error
    assert not file.parent.exists()
    assert f"train: {status}" in live_page.sections_of(state.summary())
    with pytest.raises(ConnectionError), socket.create_connection((address.hostname, address.port)):
        pass


def test_a_terminal_shows_the_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with shown():
        pass
    assert len(re.findall(r"live page: http://127\.0\.0\.1:\d+/[\w-]{43}/", screen.getvalue())) == 1


def test_a_run_goes_on_that_cannot_be_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_page, "_tell", lambda *_: Path("/nowhere/address").read_text())
    with shown() as takers:
        assert len(takers) == 1
    assert "the training is not shown while it runs: FileNotFound" in capsys.readouterr().err


def test_of_a_run_in_mlflow_the_runs_own_state_is_shown(state: RunState) -> None:
    with shown(types.SimpleNamespace(state=state)) as takers:
        assert takers == []
    with live_page.live_page(False, None, "train", (), StopRequest()) as takers:
        assert takers == []


def test_a_secret_of_the_run_is_in_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunCancelledError), shown(hidden=["hunter22hunter22"]) as (state,):
        raise RunCancelledError("hunter22hunter22")
    assert "hunter22" not in live_page.sections_of(state.summary())


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The outputs of a notebook's cell."""
    told: list[Any] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            assert raw
            told.append(content["text/html"])

    def show_in_cell(content: dict[str, Any], **how: Any) -> Handle:
        told.append(content.get("text/html", content))
        return Handle()

    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setattr(live_cell, "show_in_cell", show_in_cell)
    return told


def test_in_a_notebook_the_cell_shows_it_and_nothing_listens(
    cell: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "listen", None)
    monkeypatch.setattr(live_cell.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(live_cell, "DRAW_SECONDS", -1.0)
    with shown() as (state, drawer):
        state.printed(WORLD, ["<b>"])
        drawer.progress(WORLD, {})
    assert "train: running" in cell[0]
    assert "[rank 0] &lt;b&gt;" in cell[1]
    assert "train: running" in cell[1]
    assert "train: finished" in cell[-1]
    assert "[rank 0] &lt;b&gt;" in cell[-1]
    assert "<script" not in cell[-1]


def test_with_anywidget_it_is_a_widget(cell: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class AnyWidget:
        def __init__(self, content: str) -> None:
            self.content = content
            made.append(self)

        def _repr_mimebundle_(self) -> tuple[dict[str, str], dict[str, str]]:
            return {"widget": "1"}, {}

    class Unicode:
        def tag(self, *, sync: bool) -> Any:
            assert sync

    monkeypatch.setattr(live_cell.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "anywidget", types.SimpleNamespace(AnyWidget=AnyWidget))
    monkeypatch.setitem(sys.modules, "traitlets", types.SimpleNamespace(Unicode=Unicode))
    with shown():
        assert "train: running" in made[0].content
    assert cell == [{"widget": "1"}]
    assert "train: finished" in made[0].content
