"""What a host keeps of what ranks of other hosts have saved; here the other host has rank 0."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import held_copies
from checkpoint_ranks import ThreadPeers, run_ranks
from held_copies import until
from one_module import replace_in
from small_training import Training, equal, save_steps
from sparkdl_runner.checkpoint import Checkpoint, CheckpointError, CheckpointManager
from sparkdl_runner.checkpoint.copies import memory_copies, neighbour_copies
from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.copies.neighbour_copies import (
    copy_of_others,
    needed_of_others,
    shards_before,
)
from sparkdl_runner.checkpoint.directory.files import FileEntry
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.directory.manifest import Name, read_manifest
from sparkdl_runner.checkpoint.save.attempt import begin_together
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.checkpoint.save.retention import Retention
from sparkdl_runner.checkpoint.save.saver import Saver
from sparkdl_runner.checkpoint.save.snapshots import Snapshots
from sparkdl_runner.checkpoint.stateful import Stateful
from sparkdl_runner.rank import restart_memory, world
from sparkdl_runner.rank.world import Peer, World, assign_ranks

RUN = f"neighbour-{os.getpid()}"
PEERS = [
    Peer(partition=one, host=host, host_key=host, address="127.0.0.1", interface="lo")
    for one, host in enumerate(("lost", "stays", "stays"))
]
# The others are no processes here, so that a manager must not wait for them.
FIRST, SECOND = (replace(assign_ranks(PEERS, backend="torch")[rank], size=1) for rank in (1, 2))
RETENTION = Retention(keep_last=3, keep_best=None, best_metric=None, best_mode="min")
THREAD = "sparkdl-neighbour"


@pytest.fixture(autouse=True)
def _is_a_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(world, "_current", FIRST)
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} {os.getpid()}")
    yield
    join()
    restart_memory.end_holders(RUN, before=99)
    until(lambda: not list(restart_memory.holders(RUN)))


class Reads:
    """The files of checkpoints that are read from the storage, and whether they may be."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def open(self, name: str) -> None:
        self.names.append(name.rpartition("/")[2])
        if threading.current_thread().name == THREAD and not name.endswith(".json"):
            assert self.may_go_on.wait(60)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    noted, from_storage = Reads(), LocalStorage.open

    def opened(self: LocalStorage, name: str):
        noted.open(name)
        return from_storage(self, name)

    monkeypatch.setattr(LocalStorage, "open", opened)
    yield noted
    noted.may_go_on.set()
    join()


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(60)


def held() -> list[str]:
    return held_copies.held(RUN)


def files(storage: LocalStorage, step: int) -> list[str]:
    """The SHA-256 of each file of a checkpoint."""
    manifest = read_manifest(storage, name_of(storage, step))
    return sorted(entry.sha256 for entry in manifest.files)


def name_of(storage: LocalStorage, step: int) -> Name:
    return next(name for name in committed(storage) if name.step == step)


def storage_at(directory: Path) -> LocalStorage:
    return LocalStorage(str(directory), "here", poll_seconds=0.01)


def saved_by_rank_0(directory: Path, *steps: int) -> LocalStorage:
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr(world, "_current", None)
        save_steps(directory, *steps)
    return storage_at(directory)


def copies_of(step: int) -> MemoryCopies:
    """Those of a rank that has written its part of a step."""
    copies = MemoryCopies(is_wanted=True)
    copies.begin(step)
    return copies


def copy(storage: LocalStorage, *steps: int) -> MemoryCopies:
    """Copies these steps, one after the other."""
    copies = MemoryCopies(is_wanted=True)
    for step in steps:
        copies.begin(step)
        copy_of_others(storage, copies, name_of(storage, step), lambda: None)
    return copies


def begin_to_copy(storage: LocalStorage, copies: MemoryCopies, step: int) -> None:
    arguments = storage, copies, name_of(storage, step), lambda: None
    threading.Thread(None, copy_of_others, THREAD, arguments).start()


def restore(directory: Path) -> Training:
    world._current = replace(FIRST, attempt=1)
    training = Training()
    with CheckpointManager(directory, memory_copies=1) as checkpoints:
        restored = checkpoints.restore(training.model, training.optimizer)
    assert restored is not None
    assert restored.step == 2
    return training


def test_a_restart_on_the_host_that_stays_reads_nothing_but_the_manifest(tmp_path, reads):
    storage = saved_by_rank_0(tmp_path, 1, 2)
    copies = copy(storage, 1, 2)
    until(lambda: held() == files(storage, 2))
    copies.close(is_over=False)
    reads.names.clear()
    training = restore(tmp_path)
    assert set(reads.names) == {"manifest.json"}
    assert equal(training.weights(), Checkpoint.load(tmp_path).model)


def test_a_copy_that_is_lost_with_its_rank_is_read_from_the_storage(tmp_path, reads):
    storage = saved_by_rank_0(tmp_path, 1, 2)
    copies = copy(storage, 2)
    until(lambda: held() == files(storage, 2))
    ((pid, _, _),) = restart_memory.holders(RUN)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not held())
    copies.close(is_over=False)
    reads.names.clear()
    training = restore(tmp_path)
    assert "model.safetensors" in reads.names
    assert equal(training.weights(), Checkpoint.load(tmp_path).model)


def save_together(storage: LocalStorage, here: World) -> None:
    """Two ranks save steps 1 and 2; the second is ``here``, and keeps copies."""
    world._current = here
    copies = [MemoryCopies(is_wanted=False), MemoryCopies(is_wanted=True)]
    state = Training()

    def work(peers: ThreadPeers) -> None:
        attempt = begin_together(storage, peers)
        saver = Saver(storage, RETENTION, SavePolicy(), copies[peers.rank])
        snapshots = Snapshots(storage, None, RETENTION)
        given = Stateful.of(state.model, state.optimizer, None, {})
        for step in (1, 2):
            job = snapshots.take(
                attempt, step=step, given=given, extra=step, epoch=None, metrics=None
            )
            saver.start(job)
            saver.wait()

    run_ranks(2, 1, work)


def test_no_save_waits_for_the_copy_and_that_of_a_later_one_replaces_it(tmp_path, reads):
    reads.may_go_on.clear()
    storage = storage_at(tmp_path)
    save_together(storage, replace(FIRST, local_size=1))
    reads.may_go_on.set()
    join()
    until(lambda: held() == files(storage, 2))


@pytest.mark.parametrize(
    "here",
    [
        pytest.param(SECOND, id="not the first of its host"),
        pytest.param(replace(FIRST, rank=0), id="no rank is elsewhere"),
    ],
)
def test_no_other_rank_reads_what_others_have_saved(tmp_path, reads, here):
    reads.may_go_on.clear()
    save_together(storage_at(tmp_path), here)
    assert all(thread.name != THREAD for thread in threading.enumerate())


def test_a_checkpoint_that_is_removed_while_it_is_read_is_left(tmp_path, reads, caplog):
    storage = saved_by_rank_0(tmp_path, 1, 2)
    reads.may_go_on.clear()
    copies = copies_of(1)
    begin_to_copy(storage, copies, 1)
    until(lambda: "extra.safetensors" in reads.names)
    copies.begin(2)
    storage.delete_directory("step-1/attempt-0", storage.names("step-1/attempt-0"))
    reads.may_go_on.set()
    join()
    assert "model.safetensors" not in reads.names
    copy_of_others(storage, copies, name_of(storage, 2), lambda: None)
    until(lambda: held() == files(storage, 2))
    assert caplog.messages == []
    copies.close(is_over=True)


def test_a_file_that_differs_from_the_manifest_is_not_held_and_said(tmp_path, caplog):
    storage = saved_by_rank_0(tmp_path, 1)
    (model,) = tmp_path.glob("step-1/*/model.safetensors")
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    copies = copy(storage, 1)
    (said,) = caplog.messages
    assert said.startswith("Rank 1 on host stays: a checkpoint's copy in memory lacks what other ")
    assert "model.safetensors was changed" in said
    of_model = next(
        entry.sha256
        for entry in read_manifest(storage, name_of(storage, 1)).files
        if entry.path == "model.safetensors"
    )
    assert of_model not in held()
    copies.close(is_over=True)


def test_the_end_of_a_rank_ends_the_reading(tmp_path, reads, caplog):
    storage = saved_by_rank_0(tmp_path, 1)
    reads.may_go_on.clear()
    copies = copies_of(1)
    begin_to_copy(storage, copies, 1)
    until(lambda: "extra.safetensors" in reads.names)
    copies.close(is_over=True)
    reads.may_go_on.set()
    join()
    assert "model.safetensors" not in reads.names
    assert caplog.messages == []


def test_a_rank_that_ends_while_a_file_is_handed_over_says_nothing(monkeypatch, caplog):
    copies, send = copies_of(1), socket.send_fds

    def ended_first(*arguments: Any) -> int:
        copies.close(is_over=False)
        return send(*arguments)

    replace_in(monkeypatch, memory_copies, "socket", send_fds=ended_first)
    copies.keep(FileEntry.of("model.safetensors", b"1"), b"1")
    assert caplog.messages == []


def test_what_is_not_committed_is_not_read(tmp_path, reads, caplog):
    def given_up() -> None:
        raise CheckpointError("rank 0 gave it up")

    copies = copies_of(1)
    copy_of_others(storage_at(tmp_path), copies, Name(step=1, attempt=0), given_up)
    assert (reads.names, held(), caplog.messages) == ([], [], [])
    copies.close(is_over=True)


def paths(storage: LocalStorage, ranks: int, here: range, *more: str) -> list[str]:
    """What a host needs of others, if so many ranks have saved."""
    of_ranks = [
        path for rank in range(ranks) for path in (f"rng-{rank}.safetensors", f"rank-{rank}.json")
    ]
    entries = tuple(FileEntry.of(path, b"") for path in ("model.safetensors", *of_ranks, *more))
    manifest = replace(read_manifest(storage, name_of(storage, 1)), world_size=ranks, files=entries)
    return [entry.path for entry in needed_of_others(manifest, here)]


def test_a_host_needs_what_is_for_all_and_small_files_of_a_few_ranks(tmp_path):
    storage = saved_by_rank_0(tmp_path, 1)
    of_rank_0 = ["rng-0.safetensors", "rank-0.json"]
    of_rank_2 = ["rng-2.safetensors", "rank-2.json"]
    assert paths(storage, 3, range(2, 3))[0] == "model.safetensors"
    assert paths(storage, 3, range(1, 3)) == ["model.safetensors", *of_rank_0]
    assert paths(storage, 3, range(2)) == of_rank_2, "rank 0 has saved the model here"
    assert len(paths(storage, 64, range(8, 16))) == 1 + 2 * 56
    assert paths(storage, 65, range(8, 16)) == ["model.safetensors"]
    of_shards = ("sharded/rank-0.safetensors", "sharded/rank-0~1.safetensors")
    needed = paths(storage, 2, range(1, 2), *of_shards, "sharded/metadata.json")
    assert needed == ["model.safetensors", *of_rank_0, "sharded/metadata.json"]


@pytest.mark.parametrize(
    ("ranks", "here", "before"),
    [
        pytest.param(8, range(2, 4), [0, 1], id="the host before"),
        pytest.param(8, range(2), [6, 7], id="the first host has those of the last"),
        pytest.param(3, range(1, 3), [0], id="a host that has more ranks than all others"),
        pytest.param(9, range(8, 9), [7], id="a host that has fewer than the one before"),
    ],
)
def test_a_host_needs_shards_of_as_many_ranks_as_it_has(tmp_path, ranks, here, before):
    storage = saved_by_rank_0(tmp_path, 1)
    files = [
        FileEntry.of(path, b"")
        for rank in range(ranks)
        for path in (f"rng-{rank}.safetensors", f"sharded/rank-{rank}.safetensors")
    ]
    of_one = read_manifest(storage, name_of(storage, 1))
    manifest = replace(of_one, world_size=ranks, files=tuple(files))
    paths = [entry.path for entry in shards_before(manifest, here)]
    assert paths == [f"sharded/rank-{rank}.safetensors" for rank in before]


def saved_in_shards(directory: Path) -> tuple[LocalStorage, dict[str, str]]:
    """Step 1 of two ranks that have shards, and the SHA-256 of each file."""
    storage = saved_by_rank_0(directory, 1)
    name = name_of(storage, 1)
    shards = [FileEntry.of(f"sharded/rank-{rank}.safetensors", b"12345") for rank in range(2)]
    for entry in shards:
        storage.write(f"{name}/{entry.path}", b"12345")
    saved = read_manifest(storage, name)
    files = (*saved.files, *shards)
    manifest = replace(saved, world_size=2, sharded=True, files=files)
    storage.replace(f"{name}/manifest.json", manifest.to_bytes())
    return storage, {entry.path: entry.sha256 for entry in files}


@pytest.mark.parametrize(("lacks_bytes", "has_room"), [(0, True), (1, False)])
def test_a_host_without_room_for_other_shards_and_its_own_next_ones_has_the_rest(
    tmp_path, reads, caplog, monkeypatch, lacks_bytes, has_room
):
    monkeypatch.setattr(world, "_current", replace(FIRST, local_size=1))
    storage, sha256 = saved_in_shards(tmp_path)
    files = read_manifest(storage, name_of(storage, 1)).files
    room = sum(entry.size_bytes for entry in files) - lacks_bytes
    monkeypatch.setattr(neighbour_copies, "leaves_room", lambda needed: needed <= room)
    copies = copy(storage, 1)
    until(lambda: sha256["model.safetensors"] in held())
    said = "Rank 1 on host stays: a checkpoint's copy in memory lacks shards of other hosts: 10% "
    assert [message.startswith(said) for message in caplog.messages] == [True] * (not has_room)
    assert ("rank-0.safetensors" in reads.names) == has_room
    copies.close(is_over=True)


def test_a_file_that_comes_when_the_next_save_has_begun_goes_with_its_step():
    copies, old, new = copies_of(1), FileEntry.of("model", b"1"), FileEntry.of("model", b"2")
    copies.begin(2)
    copies.keep(old, b"1", 1)
    copies.keep(new, b"2")
    copies.committed(2)
    until(lambda: held() == [new.sha256])
    copies.close(is_over=True)
