from __future__ import annotations

import os
import stat

import pytest

from one_module import replace_in
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.launch.agent import rank_log as module
from sparkdl_runner.launch.agent.rank_log import RankLog, rank_log, remove_old_runs
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
    attempt=3,
)[0]


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("LOG_DIRS", raising=False)


def test_everything_is_written_and_only_the_owner_may_read_it(tmp_path):
    log = rank_log(None, "run-1", WORLD)
    log.write(b"one\n")
    log.write(b"two")
    log.close()
    assert log.path.read_bytes() == b"one\ntwo"
    assert log.path.parts[-3:] == ("run-1", "attempt-3", "rank-0.log")
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert log.path.parents[2] == private_folder("sparkdl_runner-logs")


def test_the_cluster_managers_folder_and_then_ones_own_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIRS", f"{tmp_path}/yarn,{tmp_path}/other")
    assert rank_log(None, "r", WORLD).path.is_relative_to(tmp_path / "yarn")
    assert rank_log(f"{tmp_path}/mine", "r", WORLD).path.is_relative_to(tmp_path / "mine")


def test_the_log_of_a_rank_that_did_well_goes_unless_it_was_asked_for(tmp_path):
    log = rank_log(None, "run-1", WORLD)
    log.write(b"fine")
    log.close(keep=False)
    assert list(private_folder("sparkdl_runner-logs").iterdir()) == []
    asked = rank_log(str(tmp_path / "mine"), "run-1", WORLD)
    asked.write(b"fine")
    asked.close(keep=False)
    assert asked.path.read_bytes() == b"fine"


def test_a_log_is_never_written_through_a_link(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    directory = tmp_path / "logs"
    directory.mkdir()
    (directory / "rank-0.log").symlink_to(secret)
    log = RankLog(directory, 0)
    log.write(b"overwritten")
    assert log.problem is not None
    assert "rank-0.log" in log.problem
    assert secret.read_text() == "mine"


def test_a_log_ends_at_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 10)
    log = RankLog(tmp_path, 0)
    log.write(b"12345678")
    log.write(b"12345")
    assert log.path.read_bytes() == b"12345678"
    assert log.problem is not None
    assert "ends at its limit of 10 bytes" in log.problem
    log.close()


def test_a_full_disk_is_told_of_and_harms_nothing(tmp_path, monkeypatch):
    log = RankLog(tmp_path, 0)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    replace_in(monkeypatch, module, "os", write=full)
    log.write(b"x")
    log.write(b"y")
    assert log.problem is not None
    assert "No space left" in log.problem


def test_old_logs_go(tmp_path):
    base = private_folder("sparkdl_runner-logs")
    for name, age_days in (("old", 8), ("new", 6)):
        (base / name).mkdir()
        os.utime(base / name, (1e9 - age_days * 86400,) * 2)
    (base / "long").mkdir()
    (base / "long" / "rank-0.log").write_text("still going")  # though its folder is old
    os.utime(base / "long", (1e9 - 30 * 86400,) * 2)
    remove_old_runs(base, now=1e9)
    assert sorted(path.name for path in base.iterdir()) == ["long", "new"]


def test_a_log_that_somebody_has_removed_is_closed_all_the_same(tmp_path):
    log = rank_log(None, "run-1", WORLD)
    log.path.unlink()
    log.close(keep=False)
    assert list(private_folder("sparkdl_runner-logs").iterdir()) == []


def test_only_old_folders_are_looked_into(monkeypatch):
    base = private_folder("sparkdl_runner-logs")
    for name, age_days in (("old", 8), ("new", 6)):
        (base / name).mkdir()
        os.utime(base / name, (1e9 - age_days * 86400,) * 2)
    seen = []
    walk = module.Path.rglob
    monkeypatch.setattr(
        module.Path, "rglob", lambda path, pattern: (seen.append(path.name), walk(path, pattern))[1]
    )
    remove_old_runs(base, now=1e9)
    assert seen == ["old"]
