"""What cannot be saved is said, with what is still good; nothing half-done is left."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from one_module import replace_in
from small_training import Training, save_steps
from sparkdl_runner.base import retrying
from sparkdl_runner.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointStorageError,
    Preempted,
)
from sparkdl_runner.checkpoint.directory import local_storage
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.directory.storage import open_storage
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.save import commit
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.rank import rank_facts


def fail_writes(
    monkeypatch,
    file_name: str,
    code: int = errno.ENOSPC,
    after_bytes: int = 0,
    times: int = 1000,
    pauses: tuple[float, ...] = (),
):
    """Lets writing a file of that name fail, once some of it is written, so many times."""
    monkeypatch.setattr(retrying, "pauses_of", lambda seconds: iter(pauses))
    real = os.write

    def write(descriptor, data):
        nonlocal times
        folder, _, name = os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")
        if not times or name != file_name or "attempt" not in folder:
            return real(descriptor, data)
        times -= 1
        real(descriptor, data[:after_bytes])
        raise OSError(code, os.strerror(code))

    replace_in(monkeypatch, local_storage, "os", write=write)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "rng-0.safetensors", "rank-0.json", "manifest.json"]
)
@pytest.mark.parametrize("after_bytes", [0, 100])
@pytest.mark.parametrize("told_by", ["save", "wait", "close"])
def test_a_disk_that_becomes_full(tmp_path, monkeypatch, file, after_bytes, told_by):
    save_steps(tmp_path, 1)
    training = Training()
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.restore()
    with monkeypatch.context() as full:
        fail_writes(full, file, after_bytes=after_bytes)
        checkpoints.save(2, training.model, training.optimizer)
        message = (
            r"Rank 0 on host \S+ could not save the checkpoint of step 2 into file://.*No space "
            r"left on device\. The checkpoint of step 1 is still good \(file://.*step-1/attempt-0\)"
        )
        arguments = (3, training.model) if told_by == "save" else ()
        with pytest.raises(CheckpointStorageError, match=message) as told:
            getattr(checkpoints, told_by)(*arguments)
        assert told.value.is_worth_a_restart
    assert not (tmp_path / "step-2").exists()
    if told_by != "close":
        checkpoints.save(2, training.model, training.optimizer)  # there is room again
        checkpoints.close()
    there = {path.name for path in tmp_path.glob("step-*")}
    assert there == ({"step-1"} if told_by == "close" else {"step-1", "step-2"})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "file", ["attempt-0.json", "model.safetensors", "rank-0.json", "manifest.json"]
)
def test_a_write_that_fails_is_tried_again(tmp_path, monkeypatch, file):
    fail_writes(monkeypatch, file, errno.EIO, after_bytes=100, times=2, pauses=(0, 0))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, Training().model)
        checkpoints.wait()
        assert [checkpoints.verify(name) for name in checkpoints.list()] == [[]]


def test_what_will_not_pass_is_not_tried_again(tmp_path, monkeypatch):
    fail_writes(monkeypatch, "model.safetensors", errno.EROFS, pauses=(60,))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, Training().model)
        with pytest.raises(CheckpointStorageError, match="Read-only file system"):
            checkpoints.wait()


def test_training_goes_on_without_a_checkpoint_as_long_as_the_user_allows(tmp_path, monkeypatch):
    with CheckpointManager(tmp_path, on_save_error="warn", max_failed_saves=2) as checkpoints:
        checkpoints.save(1, extra=1)
        checkpoints.wait()
        with monkeypatch.context() as full:
            fail_writes(full, "manifest.json")
            checkpoints.save(2, extra=2)
            with pytest.warns(UserWarning, match=r"No space left.*failed save 1 in a row, of 2"):
                checkpoints.save(3, extra=3)
            with pytest.warns(UserWarning, match="failed save 2 in a row"):
                checkpoints.wait()
            assert rank_facts.current()["failed_saves"] == 2
            checkpoints.save(4)
            with pytest.raises(CheckpointStorageError, match=r"step 4.*step 1 is still good"):
                checkpoints.save(5)
        checkpoints.save(6)
        checkpoints.wait()
        with monkeypatch.context() as full:
            fail_writes(full, "manifest.json")
            checkpoints.save(7)
            with pytest.warns(UserWarning, match="failed save 1 in a row"):
                checkpoints.wait()
        assert [name.step for name in checkpoints.list()] == [1, 6]


def test_a_later_attempt_ends_training_also_where_failed_saves_do_not(tmp_path):
    with CheckpointManager(tmp_path, on_save_error="warn") as checkpoints:
        checkpoints.save(1)
        checkpoints.wait()
        save_steps(tmp_path, 2)
        checkpoints.save(3)
        with pytest.raises(CheckpointError, match="Attempt 1 has begun"):
            checkpoints.wait()


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"on_save_error": "ignore"}, ValueError, "expected 'fail' or 'warn'"),
        ({"max_failed_saves": 0}, ValueError, "max_failed_saves is 0"),
        ({"retry_seconds": -1}, ValueError, "retry_seconds is -1"),
        ({"retry_seconds": "1"}, TypeError, "retry_seconds is '1'"),
        ({"ranks_timeout_seconds": 30}, ValueError, "expected 60 or more seconds"),
    ],
)
def test_a_policy_that_is_none_is_refused(tmp_path, arguments, error, told):
    with pytest.raises(error, match=told):
        CheckpointManager(tmp_path, **arguments)


def test_pauses_grow_and_last_as_long_as_is_asked_for():
    for seconds in (0, 1, 60):
        drawn = list(retrying.pauses_of(seconds))
        assert sum(drawn) == pytest.approx(seconds)
        assert all(pause <= seconds / 6 for pause in drawn)
    assert sum(drawn[:5]) < 1, "a save has many calls, and some fail often in a row"


class HurryInThePause(threading.Event):
    def wait(self, timeout=None):
        self.set()
        return True


@pytest.mark.parametrize(("set_before", "expected_calls"), [(True, 1), (False, 2)])
def test_a_hurry_leaves_out_the_pauses(tmp_path, set_before, expected_calls):
    """Tries once more to write what waits: there is no later chance."""
    hurry, calls = HurryInThePause(), []
    if set_before:
        hurry.set()

    def fail():
        calls.append(1)
        raise OSError(errno.EIO, "Slow Down")

    with pytest.raises(OSError, match="Slow Down"):
        patiently(open_storage(tmp_path.as_uri(), retry_seconds=60), fail, hurry)
    assert len(calls) == expected_calls


def test_the_first_save_has_nothing_to_fall_back_to(tmp_path, monkeypatch):
    fail_writes(monkeypatch, "rng-0.safetensors", errno.EIO)
    checkpoints = CheckpointManager(tmp_path, asynchronous=False)
    with pytest.raises(CheckpointError, match=r"Input/output error\. There is no earlier"):
        checkpoints.save(1)
    checkpoints.close()


def test_too_little_room_is_said_at_once(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=2_000_000))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, extra=torch.zeros(10))
        with pytest.raises(
            CheckpointError,
            match=r"step 2 needs 5,0\d\d,\d\d\d bytes .* 2,000,000 bytes free",
        ):
            checkpoints.save(2, extra=torch.zeros(1_000_000))
        checkpoints.wait()
        assert [name.step for name in checkpoints.list()] == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_small_disk_that_is_really_full(tmp_path, monkeypatch):
    monkeypatch.setattr(retrying, "pauses_of", lambda seconds: iter(()))
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this host does not let root mount")
    try:
        with CheckpointManager(tmp_path, keep_last=1) as checkpoints:
            checkpoints.save(1, extra=torch.zeros(200_000))
            checkpoints.wait()
            (tmp_path / "other").write_bytes(b"x" * 1_200_000)
            LocalStorage.free_bytes, real = lambda self: None, LocalStorage.free_bytes
            try:
                checkpoints.save(2, extra=torch.zeros(300_000))
                with pytest.raises(CheckpointError, match=r"No space left.*step 1 is still good"):
                    checkpoints.wait()
            finally:
                LocalStorage.free_bytes = real
            assert checkpoints.verify("step-1/attempt-0") == []
            assert not (tmp_path / "step-2").exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_directory_that_cannot_be_written_is_told_at_the_first_step(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        CheckpointManager(tmp_path / "file", every_steps=1000) as checkpoints,
        pytest.raises(CheckpointError, match=r"no checkpoint can be kept in file://.*rank 0") as no,
    ):
        checkpoints.due(1)
    assert not isinstance(no.value, CheckpointStorageError)


def test_a_directory_that_cannot_be_read_is_no_empty_one(tmp_path, monkeypatch):
    save_steps(tmp_path, 1)
    scandir = os.scandir

    def refuse(path):
        if str(path) == str(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with (
        CheckpointManager(tmp_path) as checkpoints,
        pytest.raises(CheckpointStorageError, match=r"rank 0 cannot read .*Permission denied"),
    ):
        checkpoints.restore()


class Custom:
    pass


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"a": [1, {"b": Custom()}]}, r"extra\['a'\]\[1\]\['b'\] is a test_failed_saves\.Custom"),
        (Custom(), r"extra is a test_failed_saves\.Custom"),
        ({Custom(): 1}, r"a key of extra is a test_failed_saves\.Custom"),
        ({"f": len}, r"extra\['f'\] is a builtin_function_or_method"),
        ((1, Path("/")), r"extra\[1\] is a pathlib\.PosixPath"),
        ([torch.eye(2).to_sparse()], r"extra\[0\] is a tensor of torch.float32, torch.sparse_coo"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused(tmp_path, extra, message):
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=message):
            checkpoints.save(1, extra=extra)
        assert not checkpoints.list()


def test_a_module_with_a_state_of_its_own_kind_is_refused(tmp_path):
    class Odd(torch.nn.Module):
        def get_extra_state(self):
            return Custom()

    with (
        CheckpointManager(tmp_path) as checkpoints,
        pytest.raises(TypeError, match=r"model\.state_dict\(\)\['_extra_state'\] is a"),
    ):
        checkpoints.save(1, Odd())


class Loader:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state


@pytest.mark.parametrize("state", [{"a": torch.ones(1)}, {1: 2}, {"a": {1, 2}}, {"a": b"b"}])
def test_a_loader_state_that_is_not_plain_is_refused(tmp_path, state):
    with (
        CheckpointManager(tmp_path) as checkpoints,
        pytest.raises(TypeError, match=r"loader .*JSON"),
    ):
        checkpoints.save(1, loader=Loader(state))


def test_metrics_and_steps_of_another_type_are_refused(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=r"metrics\['loss'\]"):
            checkpoints.save(1, metrics={"loss": "low"})
        with pytest.raises(TypeError, match=r"step is 1\.5"):
            checkpoints.save(1.5)
        with pytest.raises(ValueError, match="step is -1"):
            checkpoints.save(-1)
        with pytest.raises(ValueError, match="names no checkpoint"):
            checkpoints.verify("../../etc")
        checkpoints.save(1, metrics={"loss": torch.tensor(2.5)})
        assert checkpoints.restore().metrics == {"loss": 2.5}


def test_an_error_of_the_training_is_not_covered_by_one_of_the_save(tmp_path, monkeypatch):
    fail_writes(monkeypatch, "rng-0.safetensors")

    def train():
        with CheckpointManager(tmp_path) as checkpoints:
            checkpoints.save(1)
            raise ZeroDivisionError

    with (
        pytest.warns(UserWarning, match="could not save the checkpoint of step 1"),
        pytest.raises(ZeroDivisionError),
    ):
        train()


def test_files_are_their_owners_alone(tmp_path):
    save_steps(tmp_path / "new", 1)
    for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_a_link_in_the_way_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / "step-1").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(CheckpointError, match="a symbolic link or a file"),
        CheckpointManager(directory) as checkpoints,
    ):
        checkpoints.save(1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_flushed_before_it_counts(tmp_path, monkeypatch):
    """Every file, and the directory with its name, is flushed before the manifest is begun."""
    events = []
    fsync, write = os.fsync, LocalStorage.write

    def note_fsync(descriptor):
        events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_write(self, name, content):
        events.append(("write", name))
        write(self, name, content)

    replace_in(monkeypatch, local_storage, "os", fsync=note_fsync)
    monkeypatch.setattr(LocalStorage, "write", note_write)
    save_steps(tmp_path, 1)
    place = "step-1/attempt-0"
    begun = events.index(("write", f"{place}/manifest.json"))
    for file in (
        "model.safetensors",
        "optimizer.safetensors",
        "extra.safetensors",
        "rng-0.safetensors",
        "rank-0.json",
    ):
        flushed = events.index(("fsync", f"{tmp_path}/{place}/{file}"))
        assert events.index(("fsync", f"{tmp_path}/{place}"), flushed) < begun
    assert events.index(("fsync", f"{tmp_path}/{place}/manifest.json")) > begun
    assert events[-1] == ("fsync", f"{tmp_path}/{place}")
    assert ("fsync", f"{tmp_path}/step-1") in events[:begun]
    assert ("fsync", str(tmp_path)) in events[:begun]


def test_rank_0_names_who_is_missing_and_hurries_when_training_failed(tmp_path):
    from sparkdl_runner.checkpoint.directory.manifest import Manifest
    from sparkdl_runner.checkpoint.directory.state_files import FlatState
    from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage

    storage = open_storage(directory_url(tmp_path))
    manifest = Manifest(
        step=1,
        epoch=None,
        attempt=0,
        world_size=3,
        created="",
        sharded=False,
        parameters={},
        optimizer_class=None,
        metrics={},
        loader=None,
        resumable={},
        files=(),
    )
    patience = {"retry_seconds": 0.2, "ranks_timeout_seconds": 0.2}

    def part(rank, hurry):
        state = FlatState(rank, {})
        job = commit.SaveRequest(
            manifest=manifest,
            rank=rank,
            hosts=["zero", "one", "two"],
            states={f"x-{rank}.safetensors": state},
        )
        return commit.Commit(storage, job, hurry, SavePolicy(**patience))

    hurry = threading.Event()
    assert part(2, hurry).write() is None
    with pytest.raises(CheckpointError, match=r"of rank 1 \(host one\).*all hosts share"):
        part(0, hurry).write()
    with pytest.raises(CheckpointError, match="rank 0 gave it up"):
        part(2, hurry).wait()
    patience["ranks_timeout_seconds"] = 100
    hurry.set()
    with pytest.raises(CheckpointError, match=r"rank 1 .*rank 2"):
        part(0, hurry).write()


def test_preempted_travels_between_processes():
    import pickle

    again = pickle.loads(pickle.dumps(Preempted(120, 1, "h", ranks=(1, 3))))
    assert (again.step, again.rank, again.host, again.ranks) == (120, 1, "h", (1, 3))
    assert str(again) == (
        "Rank 1 on host h was asked to stop (SIGTERM); all ranks saved step 120 and ended."
    )
