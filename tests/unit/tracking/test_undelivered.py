"""What MLflow could not take: kept beside the checkpoints, and delivered later by somebody else."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner import cli
from sparkdl_runner.base.foreign_file import ForeignFileError
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.rank.process_identity import started_ticks
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run import entries_file, left_run, undelivered
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.spool import SPOOLS, Spool
from sparkdl_runner.tracking.run.tracked_run import TrackedRun
from sparkdl_runner.tracking.run.undelivered import Undelivered

mlflow = pytest.importorskip("mlflow")

pytestmark = pytest.mark.one_lane


def point(step: int, value: float = 1.0) -> list[Any]:
    return ["metric", "loss", value, 1_700_000_000_000 + step, step, {}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> str:
    return new_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def client(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Spools are below the temporary folder.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return mlflow.MlflowClient(tracking_uri=store)


def run_of(client: Any, checkpoints: Path) -> str:
    run = client.create_run("0")
    client.log_metric(run.info.run_id, "loss", 1.0, timestamp=1, step=1)
    client.log_param(run.info.run_id, "lr", "0.1")
    tag = f"{checkpoints.as_uri()}/step-3/attempt-0"
    client.set_tag(run.info.run_id, undelivered.CHECKPOINT_TAG, tag)
    client.set_tag(run.info.run_id, "sparkdl_runner.attempt", "0")
    return str(run.info.run_id)


def left_beside(checkpoints: Path, run_id: str) -> Path:
    """What a driver leaves that is lost while the server is down: some of it had arrived."""
    entries = [point(1), point(2), point(3), ["param", "lr", "0.1"], ["tag", "team", "a"]]
    kept = Undelivered(run_id)
    kept.keep(entries, f"{checkpoints.as_uri()}/step-3/attempt-0")
    assert kept.url == f"{checkpoints.as_uri()}/undelivered/{run_id}.jsonl"
    return checkpoints / "undelivered" / f"{run_id}.jsonl"


def steps(client: Any, run_id: str) -> list[int]:
    return sorted(one.step for one in client.get_metric_history(run_id, "loss"))


def test_what_is_kept_beside_checkpoints_is_delivered_once(
    store: str, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = tmp_path / "checkpoints"
    run_id = run_of(client, checkpoints)
    file = left_beside(checkpoints, run_id)
    arguments = ["deliver", "--tracking-uri", store, str(checkpoints)]
    assert cli.main(arguments) == 0
    assert f"run {run_id}: 3 entries delivered" in capsys.readouterr().out
    assert steps(client, run_id) == [1, 2, 3]
    assert client.get_run(run_id).data.tags["team"] == "a"
    assert not file.exists()
    assert not list((tmp_path).glob(f"{SPOOLS}*/*.jsonl"))
    assert cli.main(arguments) == 0
    assert "There is nothing to deliver." in capsys.readouterr().out


def test_the_next_driver_of_the_run_delivers_it(store: str, client: Any, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    run_id = run_of(client, checkpoints)
    file = left_beside(checkpoints, run_id)
    run = TrackedRun.open(Tracking(tracking_uri=store, run_id=run_id, report=False))
    run.begin_attempt(run.first_attempt)
    run._log([point(3), point(4)])  # It goes on from an earlier step.
    run.close(None)
    assert steps(client, run_id) == [1, 2, 3, 4]
    assert not file.exists()


def test_what_this_host_keeps_is_delivered(
    store: str, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_of(client, tmp_path)
    path = private_folder(SPOOLS) / f"{run_id}.jsonl"
    spool = Spool(path)
    spool.put([point(2), point(3)])
    assert cli.main(["deliver", "--tracking-uri", store]) == 0
    assert "another process of this host delivers it" in capsys.readouterr().out
    spool.close()
    client.set_tag(run_id, "mlflow.sparkdl_runner.driver_alive_at", f"{time.time():.0f}")
    assert cli.main(["deliver", "--tracking-uri", store]) == 0
    assert steps(client, run_id) == [1, 2, 3]
    assert not path.exists()


def test_a_server_that_nobody_knows_is_asked_for(
    client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    spool = Spool(private_folder(SPOOLS) / "0123.jsonl")
    spool.put([point(2)])
    spool.close()
    assert cli.main(["deliver"]) == 1
    told = "run 0123: its server is not known here: name it with --tracking-uri\n"
    assert capsys.readouterr().out == told
    assert not (tmp_path / "mlflow.db").exists()


def test_the_server_of_a_run_is_kept_beside_what_waits(
    store: str, client: Any, tmp_path: Path
) -> None:
    """For this user alone: its address may hold a password."""
    run_id = run_of(client, tmp_path)
    tracked = TrackedRun.open(Tracking(tracking_uri=store, run_id=run_id))
    (path,) = private_folder(SPOOLS).glob("*.left.json")
    assert path.stat().st_mode & 0o777 == 0o600
    left = left_run.left_run(run_id)
    assert left is not None
    assert (left.tracking_uri, left.status) == (store, "")
    tracked.close(None)
    assert left_run.left_run(run_id) is None
    path.write_text('{"tracking_uri": 3}')
    assert left_run.left_run(run_id) is None


def test_a_run_that_is_being_trained_is_left_to_its_driver(
    store: str, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_of(client, tmp_path)
    file = left_beside(tmp_path, run_id)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        lease = Lease()
        ticks = started_ticks(other.pid) or 0
        lease.own = dataclasses.replace(lease.own, pid=other.pid, started_ticks=ticks)
        for _, name, text in lease.entries():
            client.set_tag(run_id, name, text)
        assert cli.main(["deliver", "--tracking-uri", store, str(tmp_path)]) == 0
    finally:
        other.kill()
        other.wait()
    assert f"being trained by the driver with process id {other.pid}" in capsys.readouterr().out
    assert file.exists()


def test_a_file_of_others_is_read_as_far_as_it_holds_entries(tmp_path: Path) -> None:
    file = tmp_path / "undelivered" / "abc.jsonl"
    file.parent.mkdir()
    good = '["tag", "a", "b"]\n["metric", "x", 1.0, 1, 2, {}]\n'
    for bad in ('{"a": 1}', '["tag", "a"]', '["metric", "x", "1", 1, 2, {}]', "[", "[" * 9999):
        file.write_text(good + bad + "\n" + good)
        assert undelivered.read(file.as_uri()) == [
            ["tag", "a", "b"],
            ["metric", "x", 1.0, 1, 2, {}],
        ]
    assert undelivered.files_in(tmp_path.as_uri()) == {"abc": file.as_uri()}
    assert undelivered.files_in((tmp_path / "none").as_uri()) == {}


def test_nothing_is_kept_where_there_is_no_checkpoint_or_no_place(tmp_path: Path) -> None:
    for checkpoint in (None, ""):
        kept = Undelivered("abc")
        kept.keep([point(1)], checkpoint)
        assert not kept.url
    (tmp_path / "file").write_text("")
    kept = Undelivered("abc")
    kept.keep([point(1)], f"{(tmp_path / 'file').as_uri()}/step-1/attempt-0")
    assert not kept.url
    kept.forget()


def kept_beside(folder: Path) -> tuple[Undelivered, Path]:
    kept = Undelivered("abc")
    kept.keep([point(1)], f"{folder.as_uri()}/step-1/attempt-0")
    return kept, folder / "undelivered" / "abc.jsonl"


def test_what_is_kept_is_its_owners_alone_and_written_through_no_link(tmp_path: Path) -> None:
    kept, file = kept_beside(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    mine = tmp_path / "mine"
    mine.write_text("of mine")
    file.unlink()
    file.symlink_to(mine)
    kept_beside(tmp_path)
    assert mine.read_text() == "of mine"
    assert not file.is_symlink()
    assert undelivered.read(file.as_uri()) == [point(1)]
    assert [one.name for one in file.parent.iterdir()] == ["abc.jsonl"]
    kept.forget()
    assert not file.exists()


def test_a_folder_that_is_a_link_is_neither_written_read_nor_deleted_in(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "undelivered").symlink_to(elsewhere)
    kept, file = kept_beside(tmp_path)
    assert (kept.url, list(elsewhere.iterdir())) == ("", [])
    (elsewhere / "abc.jsonl").write_text("")
    with pytest.raises(OSError, match="undelivered"):
        undelivered.read(file.as_uri())
    undelivered.delete(file.as_uri())
    assert (elsewhere / "abc.jsonl").exists()


def test_a_pipe_a_link_and_a_file_without_end_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = kept_beside(tmp_path)
    pipe, link = file.with_name("pipe.jsonl"), file.with_name("link.jsonl")
    os.mkfifo(pipe)
    link.symlink_to(file)
    for wrong in (pipe, link):
        with pytest.raises(OSError, match=wrong.name):
            undelivered.read(wrong.as_uri())
    huge = file.with_name("huge.jsonl")
    huge.touch()
    os.truncate(huge, 1 << 40)
    monkeypatch.setattr(entries_file, "MOST_BYTES", 100)
    with pytest.raises(ForeignFileError, match="more than the 100 bytes"):
        undelivered.read(huge.as_uri())
    kept = Undelivered("abc")
    kept.keep([point(1)] * 9, f"{tmp_path.as_uri()}/step-1/attempt-0")
    assert undelivered.read(file.as_uri()) == [point(1), point(1)], "as much as a reader takes"


def test_a_file_that_cannot_be_read_is_told_and_left(
    store: str, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = run_of(client, tmp_path)
    (tmp_path / "undelivered").mkdir()
    pipe = tmp_path / "undelivered" / f"{run_id}.jsonl"
    os.mkfifo(pipe)
    assert cli.main(["deliver", "--tracking-uri", store, str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert f"run {run_id}: {pipe.as_uri()} cannot be read: " in told
    assert "is a pipe" in told
    assert not list(tmp_path.glob(f"{SPOOLS}*/*.jsonl"))
