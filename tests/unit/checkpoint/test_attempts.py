"""An attempt that everybody took for dead can neither commit nor remove."""

from __future__ import annotations

import shutil
import warnings

import pytest

from checkpoint_ranks import CountingStorage
from small_training import save_steps
from sparkdl_runner.checkpoint import CheckpointError, CheckpointManager
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import Name


def names(directory) -> list[str]:
    with CheckpointManager(directory) as checkpoints:
        return [str(name) for name in checkpoints.list()]


def test_attempts_are_counted(tmp_path):
    for _ in range(3):
        save_steps(tmp_path, 1)
    assert names(tmp_path) == [f"step-1/attempt-{attempt}" for attempt in range(3)]
    fences = [f"attempt-{attempt}.json" for attempt in range(3)]
    found = sorted(path.name for path in (tmp_path / "attempts").iterdir())
    assert [name for name in found if name.endswith(".json")] == fences
    assert len(found) == 2 * len(fences)  # Each has a claim beside it.


def test_the_attempt_of_the_run_is_the_least(tmp_path, monkeypatch):
    from sparkdl_runner.rank import world
    from sparkdl_runner.rank.world import Peer, assign_ranks

    peer = Peer(partition=0, host="h", host_key="h", address="::1", interface="lo")
    monkeypatch.setattr(world, "_current", assign_ranks([peer], backend="x", attempt=4)[0])
    save_steps(tmp_path, 1)
    assert names(tmp_path) == ["step-1/attempt-4"]


def test_a_zombie_commits_nothing_and_removes_nothing(tmp_path):
    zombie = CheckpointManager(tmp_path, keep_last=1)
    zombie.save(1, extra=[1])
    zombie.wait()
    with CheckpointManager(tmp_path) as later:
        assert later.restore().step == 1
        later.due(2)
        zombie.save(9, extra=[9])
        with pytest.raises(CheckpointError, match=r"Attempt 1 has begun.*step 1 is still good"):
            zombie.wait()
        assert later.list() == [Name(step=1, attempt=0)]
        zombie.close()
        later.save(2)
    assert names(tmp_path) == ["step-1/attempt-0", "step-2/attempt-1"]
    assert not (tmp_path / "step-9").exists()


def test_who_reads_ends_nobody(tmp_path):
    training = CheckpointManager(tmp_path)
    training.save(1, extra=[1])
    training.wait()
    before = sorted(tmp_path.rglob("*"))
    with CheckpointManager(tmp_path) as reader:
        assert reader.restore().step == 1
        assert [reader.verify(name) for name in reader.list()] == [[]]
        assert sorted(tmp_path.rglob("*")) == before
        training.save(2, extra=[2])
        training.close()
        assert reader.restore().step == 2
    assert names(tmp_path) == ["step-1/attempt-0", "step-2/attempt-0"]


def test_what_the_training_removes_while_it_is_read_is_looked_for_again(tmp_path, monkeypatch):
    from sparkdl_runner.checkpoint import restoring

    training = CheckpointManager(tmp_path, keep_last=1, asynchronous=False)
    training.save(1, extra=[1])
    real, steps = restoring.read_manifest, iter((2, 3))

    def read_slowly(storage, name):
        manifest = real(storage, name)
        if step := next(steps, None):
            training.save(step, extra=[step])
        return manifest

    monkeypatch.setattr(restoring, "read_manifest", read_slowly)
    with (
        CheckpointManager(tmp_path) as reader,
        pytest.warns(UserWarning, match=r"step-1/attempt-0 is passed over by rank 0: .* is gone"),
    ):
        assert reader.restore().extra == [3]
    training.close()


def test_what_a_zombie_committed_in_the_last_moment_is_never_seen(tmp_path, monkeypatch):
    """It looked for a later attempt just before there was one."""
    from sparkdl_runner.checkpoint.save import commit

    zombie = CheckpointManager(tmp_path, keep_last=1)
    zombie.save(1, extra=[1])
    zombie.wait()
    later = CheckpointManager(tmp_path)
    assert later.restore().step == 1
    later.due(2)
    with monkeypatch.context() as blind:
        blind.setattr(commit, "attempts_in", lambda names: [])
        zombie.save(9, extra=[9])
        zombie.close()
    assert (tmp_path / "step-9" / "attempt-0" / "manifest.json").exists()
    assert (tmp_path / "step-1" / "attempt-0" / "manifest.json").exists()
    assert later.restore().step == 1
    assert names(tmp_path) == ["step-1/attempt-0"]
    later.close()
    with CheckpointManager(tmp_path) as again:
        assert again.restore().step == 1
        again.save(2)
        again.wait()
        assert [name.step for name in again.list()] == [1, 2]
    assert not (tmp_path / "step-9").exists(), "the next commit sweeps it away"


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b"[" * 9999])
def test_a_damaged_fence_is_said_and_left_out(tmp_path, damage):
    save_steps(tmp_path, 1)
    save_steps(tmp_path, 2)
    (tmp_path / "attempts" / "attempt-1.json").write_bytes(damage)
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.warns(UserWarning, match=r"attempt-1\.json is damaged"):
            assert checkpoints.restore().step == 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoints.save(3)
            checkpoints.wait()
    assert (tmp_path / "step-3" / "attempt-2").exists()


def test_many_attempts_make_no_more_requests(tmp_path):
    """A training that is called each night for a month leaves a fence of each night."""
    asked = []
    for _ in range(4):
        save_steps(tmp_path, 1)
        storage = CountingStorage(str(tmp_path))
        found = committed(storage)
        asked.append(dict(storage.counts))
    assert sorted(found) == [Name(step=1, attempt=attempt) for attempt in range(4)]
    assert asked == [{"LIST": 1}] + 3 * [{"LIST": 1, "GET": 1}]


def test_without_fences_numbers_still_go_up(tmp_path):
    save_steps(tmp_path, 1)
    shutil.rmtree(tmp_path / "attempts")
    save_steps(tmp_path, 1)
    assert names(tmp_path) == ["step-1/attempt-0", "step-1/attempt-1"]


def test_two_that_begin_at_once_take_two_numbers(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage
    from sparkdl_runner.checkpoint.save.attempt import begin_attempt

    storage = open_storage(directory_url(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: begin_attempt(storage)[0], range(16)))
    assert len(set(taken)) == 16


def test_where_files_are_overwritten_the_number_is_whose_token_stays(tmp_path):
    """As on object stores: two find no file of a number and write it; the later one has it."""
    from sparkdl_runner.checkpoint.directory.sealed import seal
    from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage
    from sparkdl_runner.checkpoint.save.attempt import begin_attempt

    class Overwritten(type(open_storage(directory_url(tmp_path)))):
        """Another driver writes each of the first two numbers' files just after us."""

        def open(self, name):
            if name in ("attempts/attempt-0.json", "attempts/attempt-1.json"):
                theirs = {"attempt": int(name[-6]), "token": "theirs", "committed": []}
                (tmp_path / name).write_bytes(seal(theirs))
            return super().open(name)

    assert begin_attempt(Overwritten(str(tmp_path), "x", poll_seconds=0.01))[0] == 2


def test_a_number_that_another_driver_takes_first_is_passed_over(tmp_path):
    from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage
    from sparkdl_runner.checkpoint.save.attempt import begin_attempt

    class Taken(type(open_storage(directory_url(tmp_path)))):
        """Another driver writes the first numbers' files after we have looked for them."""

        def write(self, name, content):
            if any(name == f"attempts/attempt-{number}.json" for number in range(self.theirs)):
                (tmp_path / "attempts").mkdir(exist_ok=True)
                (tmp_path / name).write_text("being written")
            super().write(name, content)

    storage = Taken(str(tmp_path), "x", poll_seconds=0.01)
    storage.theirs = 2
    assert begin_attempt(storage)[0] == 2
    storage.theirs = 1000
    with pytest.raises(CheckpointError, match=r"from 3 on were taken \d+ times\. Give each run"):
        begin_attempt(storage)


def test_names_of_other_things_are_left_alone(tmp_path):
    save_steps(tmp_path, 1)
    for path in ("step-x/attempt-0", "step-01/attempt-0", "step-1/attempt--1", "other/attempt-0"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "manifest.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    save_steps(tmp_path, 2)
    assert names(tmp_path) == ["step-1/attempt-0", "step-2/attempt-1"]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "other/attempt-0/manifest.json").exists()


def overtake(directory, number):
    """Another driver, which began at the same moment, writes the fence of the same number."""
    from sparkdl_runner.checkpoint.directory.sealed import seal

    (directory / "attempts" / f"attempt-{number}.theirs").touch()
    fence = directory / "attempts" / f"attempt-{number}.json"
    fence.write_bytes(seal({"attempt": number, "token": "theirs", "committed": []}))


def test_of_two_with_one_number_the_first_commits_nothing_and_removes_nothing(tmp_path):
    """In an object store, each found no fence, wrote one, and read its own."""
    first = CheckpointManager(tmp_path)
    first.save(1, extra=[1])
    first.wait()
    overtake(tmp_path, 0)
    theirs = tmp_path / "step-2" / "attempt-0"
    theirs.mkdir(parents=True)
    (theirs / "model.safetensors").write_text("of the other")
    first.save(2, extra=[2])
    with pytest.raises(CheckpointError, match="at the same moment as this one"):
        first.wait()
    first.close()
    assert (theirs / "model.safetensors").read_text() == "of the other"
    assert not (theirs / "manifest.json").exists()
    assert names(tmp_path) == ["step-1/attempt-0"]


def test_a_fence_that_is_gone_ends_no_training(tmp_path):
    with CheckpointManager(tmp_path) as only:
        only.save(1, extra=[1])
        only.wait()
        shutil.rmtree(tmp_path / "attempts")
        only.save(2, extra=[2])
    assert names(tmp_path) == ["step-1/attempt-0", "step-2/attempt-0"]


@pytest.fixture
def owners(monkeypatch):
    """Other owners of some paths than they have; this process is user 4711."""
    import os

    given = {}
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def looked_at(path, *, real=real, **more):
            found = real(path, **more)
            fields = list(found)
            fields[4] = given.get(str(path), 4711)
            return type(found)(fields)

        monkeypatch.setattr(
            f"sparkdl_runner.checkpoint.directory.local_storage.os.{name}", looked_at
        )
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    return given


def test_a_directory_of_another_user_is_told(tmp_path, owners):
    owners[str(tmp_path)] = 4712
    with pytest.warns(UserWarning, match="belongs to user id 4712, who can exchange"):
        save_steps(tmp_path, 1)
    for owner in (0, 4711, 65534):  # Root, ourselves, and whom a server shows for root.
        owners[str(tmp_path)] = owner
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            save_steps(tmp_path, 1)


def test_a_third_users_folder_in_it_is_refused(tmp_path, owners):
    from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage

    storage = open_storage(directory_url(tmp_path))
    (tmp_path / "step-1").mkdir()
    owners[str(tmp_path / "step-1")] = 4712
    with pytest.raises(PermissionError, match="another user's directory is in the way"):
        storage.write("step-1/attempt-0/model", b"x")
    owners[str(tmp_path)] = 4712
    storage.write("step-1/attempt-0/model", b"x")
