from __future__ import annotations

import platform
import sys
import threading
from types import SimpleNamespace

import pyspark
import pytest

from ports import closed_port
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError
from sparkdl_runner.launch.driver.connect import launcher, query, session
from sparkdl_runner.launch.driver.connect.query import ServerQuery
from sparkdl_runner.launch.wire import network


def of(endpoint: str, **more):
    """A session of the server at such an address."""
    builder = SimpleNamespace(endpoint=endpoint)
    client = SimpleNamespace(_builder=builder, set_retry_policies=lambda policies: None)
    conf = SimpleNamespace(get=lambda name, default: default)
    return SimpleNamespace(**{"client": client, "conf": conf, "is_stopped": False, **more})


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("spark.example.com", ("spark.example.com", 15002)),
        ("10.0.0.7:443", ("10.0.0.7", 443)),
        ("[::1]:15003", ("::1", 15003)),
    ],
)
def test_where_the_server_is(endpoint, place):
    assert session.server_of(of(endpoint)) == place


def test_whether_the_server_answers():
    with network.listen("127.0.0.1") as listener:
        assert session.answers(of(f"127.0.0.1:{listener.getsockname()[1]}"))
    with closed_port() as port:
        assert not session.answers(of(f"127.0.0.1:{port}"))
    assert session.answers(SimpleNamespace(client=None)), "a channel of another kind is not judged"


OWN = platform.python_version()


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        ("[NO_ACTIVE_SESSION] No active Spark session", LaunchError, "was started again"),
        ("[INVALID_HANDLE.SESSION_CHANGED] The handle", LaunchError, "does not know this session"),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle", LaunchError, "does not know this session"),
        (
            '<_RPC:\n status = StatusCode.UNAUTHENTICATED\n details = "Bad token"\n',
            LaunchError,
            r"refuses this client \(Bad token\): its token is wrong or has expired",
        ),
        ("StatusCode.PERMISSION_DENIED", LaunchError, r"client \(StatusCode\.PERMISSION_DENIED\)"),
        ("[OPERATION_CANCELED] Operation has been", RunCancelledError, "was cancelled"),
        (
            "Python in worker has different version: 3.7 than that in driver: 3.12, PySpark",
            LaunchError,
            f"executors have Python 3.7, and this client {OWN}",
        ),
        ("what nobody has seen\nin lines", LaunchError, "need: what nobody has seen$"),
    ],
)
def test_what_pyspark_raises_before_the_start_is_one_sentence(words, kind, sentence):
    with pytest.raises(kind, match=sentence) as caught, session.in_a_sentence(of("h")):
        raise ValueError(words)
    assert "\n" not in str(caught.value)


def test_a_stopped_session_is_told_whatever_pyspark_raises():
    with (
        pytest.raises(RunCancelledError, match="was stopped before the ranks had started"),
        session.in_a_sentence(of("h", is_stopped=True)),
    ):
        raise ValueError("Cannot invoke RPC: Channel closed!")


class DefaultSession(SimpleNamespace):
    """pyspark closes one whose server was started again; only ``stop()`` also forgets it."""

    _default_session: DefaultSession | None = None


def test_a_server_that_was_started_again_is_told_although_pyspark_closes_the_session(monkeypatch):
    closed = DefaultSession(is_stopped=True)
    monkeypatch.setattr(DefaultSession, "_default_session", closed)
    with (
        pytest.raises(LaunchError, match="does not know this session any more: it was started"),
        session.in_a_sentence(closed),
    ):
        raise ValueError("[NO_ACTIVE_SESSION] No active Spark session found.")


def required(monkeypatch, found):
    kind = SimpleNamespace(getActiveSession=lambda: found, _default_session=None)
    module = SimpleNamespace(SparkSession=kind)
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", module)
    monkeypatch.setattr(session.atexit, "register", lambda *_: None)
    return session.require_session()


class Answering(SimpleNamespace):
    """Kept in a weak set, as real ones."""

    __hash__ = object.__hash__


class Mute(Answering):
    """Its server says nothing."""

    @property
    def version(self) -> str:
        self.asked.wait()
        return ""


def test_the_session_that_is_required(monkeypatch):
    with network.listen("127.0.0.1") as listener:
        answering = Answering(**vars(of(f"127.0.0.1:{listener.getsockname()[1]}")))
        answering.version = pyspark.__version__
        assert required(monkeypatch, answering) is answering
        answering.version = "9.1.0"
        with pytest.raises(
            LaunchError, match=r"server Spark 9\.1\.0: .* 'pyspark\[connect\]==9\.1\.0'"
        ):
            required(monkeypatch, answering)
        answering.is_stopped = True
        with pytest.raises(LaunchError, match="There is no Spark Connect session: create one"):
            required(monkeypatch, answering)
    with pytest.raises(LaunchError, match="There is no Spark Connect session: create one"):
        required(monkeypatch, None)
    with closed_port() as port, pytest.raises(LaunchError, match=f"1:{port} does not answer: it"):
        required(monkeypatch, Answering(**vars(of(f"127.0.0.1:{port}"))))


def test_a_server_that_listens_and_never_answers_is_refused(monkeypatch, may_end):
    monkeypatch.setattr(session, "ANSWER_SECONDS", 0.05)
    with network.listen("127.0.0.1") as listener:
        mute = Mute(**vars(of(f"127.0.0.1:{listener.getsockname()[1]}")), asked=may_end)
        with pytest.raises(LaunchError, match=r"has not answered in 0\.05 s: .* encrypts and the"):
            required(monkeypatch, mute)
        mute.conf.get = lambda name, default: may_end.wait()
        with pytest.raises(LaunchError, match=r"hangs or has lost its Spark"):
            session.setting(mute, "spark.master")


def test_at_its_end_the_process_asks_a_server_once():
    policies = [["of pyspark"]]
    used = of("h")
    used.client.set_retry_policies = policies.append
    session._let_the_process_exit(used)
    assert policies.pop() == []


class Session:
    """Runs no query; passes on how far one is."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.interrupted: list[str] = []
        self.is_interrupted = threading.Event()
        self.handlers: list[object] = []
        self.client = SimpleNamespace(_builder=SimpleNamespace(endpoint="h"))
        self.settings: dict[str, str] = {}
        self.conf = SimpleNamespace(get=lambda name, default: self.settings.get(name, default))
        self.addTag = self.tags.append
        self.registerProgressHandler = self.handlers.append
        self.removeProgressHandler = self.handlers.remove
        self.interruptTag = self.interrupt

    def interrupt(self, tag: str) -> None:
        self.interrupted.append(tag)
        self.is_interrupted.set()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(query, "LOOK_SECONDS", 0.01)


@pytest.fixture
def may_end():
    event = threading.Event()
    yield event
    event.set()


def test_a_query_is_given_up_once_its_server_is_gone(quick, may_end, monkeypatch):
    answers = iter([True, False, False, True, False, False, False])
    monkeypatch.setattr(query, "answers", lambda _: next(answers))
    asked = ServerQuery(Session(), may_end.wait, slots=1)
    with pytest.raises(RunnerError, match="The Spark Connect server at h:15002 does not answer"):
        asked.result()
    assert asked.server_is_lost
    assert asked.wait(600), "its thread may ask the server for ten minutes"
    assert next(answers, None) is None, "three in a row, and no fewer"
    asked.close()


@pytest.fixture
def answering(monkeypatch):
    monkeypatch.setattr(query, "answers", lambda _: True)


def test_a_server_that_starts_no_stage_has_too_few_slots(quick, answering, may_end):
    server = Session()
    asked = ServerQuery(server, may_end.wait, slots=9, start_seconds=0.1)
    with pytest.raises(LaunchError, match=r"9 ranks need 9 task slots at once, and in 0\.1 s"):
        asked.result()
    assert server.is_interrupted.wait(60)
    assert server.interrupted == server.tags
    asked.close()
    assert not server.handlers


def test_a_stage_without_tasks_waits_for_slots(quick, answering, capsys):
    server, goes_on = Session(), threading.Event()

    def action() -> str:
        for handler in server.handlers:
            handler(stages=["one"], inflight_tasks=0, operation_id="o", done=False)
        goes_on.wait()
        return "value"

    def register(handler) -> None:
        server.handlers.append(handler)
        may_begin.set()

    may_begin = threading.Event()
    server.registerProgressHandler = register
    asked = ServerQuery(server, lambda: may_begin.wait() and action(), slots=2, start_seconds=0.05)
    told = ""
    while "waiting until 2 slots are free at once. Other" not in told:
        told += capsys.readouterr().err
    # Another thread's progress is another query's.
    server.handlers[0](stages=["one"], inflight_tasks=3, operation_id="p", done=False)
    assert not asked._has_tasks
    goes_on.set()
    assert asked.result() == "value"
    asked.close()


def test_tasks_that_were_heard_have_slots(quick, answering, may_end):
    looked = iter(range(20))
    asked = ServerQuery(
        Session(),
        may_end.wait,
        slots=9,
        start_seconds=0.0,
        has_begun=lambda: next(looked, None) is not None or may_end.set() or True,
    )
    assert asked.result() is True
    asked.close()


@pytest.mark.parametrize("is_old", [True, False])
def test_a_server_that_tells_no_progress_is_waited_for(quick, answering, may_end, is_old):
    server = Session()
    if is_old:  # Spark 3.5's.
        del server.registerProgressHandler
    server.settings["spark.connect.progress.reportInterval"] = "-1"
    looks = iter([True] * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "answers", lambda _: next(looks, None) or may_end.set() or True)
        asked = ServerQuery(server, may_end.wait, slots=9, start_seconds=0.0)
        assert asked.result() is True
        asked.close()


def test_gpus_that_ranks_would_share_are_refused():
    settings = {"spark.executor.resource.gpu.amount": "2"}
    with pytest.raises(LaunchError, match=r"executors have 2 .* start the server with spark\.task"):
        launcher._check_gpus(settings.get)
    launcher._check_gpus({**settings, "spark.task.resource.gpu.amount": "1"}.get)
    launcher._check_gpus({}.get)
