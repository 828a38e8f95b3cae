"""A tracking server names its runs, and those names become files of the driver."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.rank import outside_ranks
from sparkdl_runner.tracking.run import undelivered
from sparkdl_runner.tracking.run.opening.opened import create_run
from sparkdl_runner.tracking.run.server_calls import ServerCalls


@pytest.mark.parametrize("run_id", ["../../home/bob/ds/train", "/home/bob/train", "a\x1b[2J", ""])
def test_a_server_that_calls_a_run_like_a_path_gets_no_file_of_ours(run_id: str) -> None:
    pytest.importorskip("mlflow")
    run = SimpleNamespace(info=SimpleNamespace(run_id=run_id))
    store = SimpleNamespace(
        client=SimpleNamespace(create_run=lambda *_, **__: run),
        experiment_id="0",
        active=None,
        call=ServerCalls(uri="http://me:pass-word@host", timeout_seconds=120),
    )
    with pytest.raises(LaunchError, match="letters, digits and hyphens") as raised:
        create_run(store, None)
    assert "pass-word" not in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_metrics_outside_of_ranks_wait_in_a_file_that_the_server_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(outside_ranks.atexit, "register", at_exit.append)
    outside_ranks._record(f"sqlite:///{tmp_path}/none.db", "../mine/train")
    assert list((tmp_path / "mine").iterdir()) == []
    for end in at_exit:
        end()


def test_what_lies_beside_checkpoints_under_another_name_is_of_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "undelivered"
    folder.mkdir()
    for name in ("ab-1.jsonl", "...jsonl", "a b.jsonl", ".jsonl", "a.txt"):
        (folder / name).write_text("")
    assert list(undelivered.files_in(tmp_path.as_uri())) == ["ab-1"]
