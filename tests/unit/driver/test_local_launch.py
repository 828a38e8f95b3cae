"""Workers that the local launcher has started end where another cannot be started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver import local_launcher


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

    monkeypatch.setattr(local_launcher, "WorkerProcess", Worker)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        local_launcher.launch(
            num_proc=2, backend="torch", function=b"", config=RunConfig(), run="r"
        )
    assert ended == started


def test_a_rank_that_has_ended_however_is_not_watched_any_more() -> None:
    ended: list[str] = []
    console = SimpleNamespace(watch=SimpleNamespace(ended=ended.append))

    def lost() -> None:
        raise EOFError

    assert local_launcher._wait("first", SimpleNamespace(wait=lambda: "value"), console) == "value"
    with pytest.raises(EOFError):
        local_launcher._wait("second", SimpleNamespace(wait=lost), console)
    assert ended == ["first", "second"]
