"""Workers that the local launcher has started end where another cannot be started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.agent.spares import pool
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import local_launcher
from sparkdl_runner.launch.wire.attempt import AttemptSpec


def test_workers_that_were_started_end_where_another_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, ended = [], []

    class Worker:
        def __init__(self, **_: object) -> None:
            if started:
                raise OSError("Cannot allocate memory")
            started.append(self)

        def end(self) -> None:
            ended.append(self)

    monkeypatch.setattr(pool, "WorkerProcess", Worker)
    monkeypatch.setattr(pool, "is_possible", lambda: False)
    attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        local_launcher.LocalGang(attempt, 2, ()).run()
    assert ended == started


def test_a_rank_that_has_ended_however_is_not_watched_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")
    gang = local_launcher.LocalGang(attempt, 2, ())
    ended: list[str] = []
    monkeypatch.setattr(gang.watch, "ended", ended.append)

    def supervise(worker: str, *arguments: object) -> str:
        if worker == "lost":
            raise EOFError
        return "value"

    monkeypatch.setattr(local_launcher, "supervise", supervise)
    assert gang._run("returned", SimpleNamespace(world="first"), None) == "value"
    with pytest.raises(EOFError):
        gang._run("lost", SimpleNamespace(world="second"), None)
    assert ended == ["first", "second"]


@pytest.mark.parametrize("reason", ["it is late", ""])
def test_all_ranks_are_asked_to_end_if_there_is_a_reason(reason: str) -> None:
    attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")
    gang = local_launcher.LocalGang(attempt, 2, ())
    asked: list[str] = []
    gang._workers = [SimpleNamespace(request_stop=asked.append)] * 2
    gang.request_stop(reason)
    assert asked == ([reason] * 2 if reason else [])
