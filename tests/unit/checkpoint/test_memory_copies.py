"""Copies of a checkpoint in memory that outlives the rank: what a restart reads from where."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import held_copies
from held_copies import descriptors, until
from small_training import Training, equal
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.copies import holder, memory_copies
from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.directory import memory
from sparkdl_runner.checkpoint.directory.files import FileEntry, read_entry
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.directory.manifest import read_manifest
from sparkdl_runner.rank import control_group, restart_memory, world
from sparkdl_runner.rank.world import Peer, assign_ranks

RUN = f"run-{os.getpid()}"
PEER = Peer(partition=0, host="h", host_key="h", address="127.0.0.1", interface="lo")
HERE = assign_ranks([PEER], backend="torch")[0]


@pytest.fixture(autouse=True)
def _is_a_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(world, "_current", HERE)
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} {os.getpid()}")
    yield
    restart_memory.end_holders(RUN, before=99)
    until(no_holder)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of checkpoints that are read from the storage."""
    names: list[str] = []
    from_storage = LocalStorage.open

    def noted(self: LocalStorage, name: str):
        names.append(name.rpartition("/")[2])
        return from_storage(self, name)

    monkeypatch.setattr(LocalStorage, "open", noted)
    return names


def manager_of(directory: Path, attempt: int = 0, copies: int = 1) -> CheckpointManager:
    world._current = replace(HERE, attempt=attempt)
    return CheckpointManager(directory, asynchronous=False, memory_copies=copies)


def save(checkpoints: CheckpointManager, *steps: int) -> Training:
    training = Training()
    for step in steps:
        training.step()
        checkpoints.save(step, training.model, training.optimizer, extra={"step": step})
    return training


def die(checkpoints: CheckpointManager) -> None:
    """Ends a rank as SIGKILL would: its end of the line is closed, and the holder stays."""
    until(lambda: held(world._current.attempt) == newest(checkpoints))
    with suppress(KeyError), checkpoints:
        raise KeyError


def held(attempt: int | None = None) -> list[str]:
    """The SHA-256 of each file that a holder has, of one attempt or of all."""
    return held_copies.held(RUN, attempt)


def newest(checkpoints: CheckpointManager) -> list[str]:
    """The SHA-256 of each file of the newest checkpoint."""
    manifest = read_manifest(checkpoints._storage, checkpoints.list()[-1])
    return sorted(entry.sha256 for entry in manifest.files)


def no_holder() -> bool:
    return not list(restart_memory.holders(RUN))


def restore(checkpoints: CheckpointManager) -> tuple[int | None, Training]:
    training = Training()
    restored = checkpoints.restore(training.model, training.optimizer)
    return restored.step if restored else None, training


def test_a_restart_reads_no_file_but_the_manifest_and_so_does_the_next(tmp_path, read):
    checkpoints = manager_of(tmp_path)
    trained = save(checkpoints, 1, 2)
    die(checkpoints)
    for attempt in (1, 2):  # The first of them saves nothing.
        read.clear()
        checkpoints = manager_of(tmp_path, attempt)
        step, training = restore(checkpoints)
        assert (step, set(read)) == (2, {"manifest.json"})
        assert equal(training.weights(), trained.weights())
        die(checkpoints)


def test_only_the_newest_checkpoint_is_held_also_after_a_restart(tmp_path):
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1, 2, 3)
    die(checkpoints)
    checkpoints = manager_of(tmp_path, 1)
    restore(checkpoints)
    save(checkpoints, 4)
    until(lambda: held() == newest(checkpoints))
    checkpoints.close()
    until(no_holder)


def test_bytes_that_differ_from_the_manifest_are_read_from_the_storage(tmp_path, read):
    checkpoints = manager_of(tmp_path)
    trained = save(checkpoints, 1)
    until(lambda: held() == newest(checkpoints))
    ((pid, _, _),) = restart_memory.holders(RUN)
    largest = max(
        (link for link in descriptors(pid) if holder.MEMORY in os.readlink(link)),
        key=lambda link: link.stat().st_size,
    )
    with open(largest, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    die(checkpoints)
    read.clear()
    checkpoints = manager_of(tmp_path, 1)
    with pytest.warns(UserWarning, match="not read from memory: .* was changed") as told:
        step, training = restore(checkpoints)
    assert len(told) == 1
    assert step == 1
    assert len(read) == 2, "that file and the manifest"
    assert equal(training.weights(), trained.weights())
    checkpoints.close()


def test_what_the_storage_has_committed_counts(tmp_path, read):
    """A newer checkpoint there, and one that was never committed in memory."""
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1)
    die(checkpoints)
    with manager_of(tmp_path, 1, copies=0) as other:
        other.restore()
        trained = save(other, 2)
    checkpoints = manager_of(tmp_path, 2)
    step, training = restore(checkpoints)
    assert step == 2
    assert equal(training.weights(), trained.weights())
    save(checkpoints, 3)
    die(checkpoints)
    for name in tmp_path.glob("step-3/*/manifest.json"):
        name.unlink()
    checkpoints = manager_of(tmp_path, 3)
    assert restore(checkpoints)[0] == 2
    checkpoints.close()


def test_a_rank_that_does_not_commit_leaves_no_more_from_restart_to_restart(tmp_path):
    storage, contents = LocalStorage(str(tmp_path), "here", poll_seconds=0.0), {}
    for step in range(6):
        contents[step] = f"step {step}".encode()
        (tmp_path / f"{step}").write_bytes(contents[step])
    entries = {step: FileEntry.of(str(step), content) for step, content in contents.items()}

    def saved(copies: MemoryCopies, *steps: int) -> None:
        for step in steps:
            copies.begin(step)
            copies.keep(entries[step], contents[step])

    world._current = replace(HERE, rank=1)
    copies = MemoryCopies(is_wanted=True)
    saved(copies, 0, 1)
    for attempt in range(1, 4):
        both = sorted(entries[step].sha256 for step in (attempt - 1, attempt))
        until(lambda both=both: held() == both)
        copies.close(is_over=False)
        world._current = replace(HERE, rank=1, attempt=attempt)
        copies = MemoryCopies(is_wanted=True)
        storage.copies = copies.found
        read_entry(storage, "", entries[attempt])  # The newest that all have.
        copies.hand_on()
        until(lambda attempt=attempt: held() == [entries[attempt].sha256])
        saved(copies, attempt + 1)
    copies.close(is_over=True)
    until(no_holder)


def test_a_save_that_failed_leaves_the_one_before_in_memory(tmp_path, monkeypatch, read):
    checkpoints = CheckpointManager(
        tmp_path, asynchronous=False, on_save_error="warn", retry_seconds=0, memory_copies=1
    )
    trained = save(checkpoints, 1)

    def refuse(self: LocalStorage, name: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(LocalStorage, "write", refuse)
        with pytest.warns(UserWarning, match="step 2"):
            save(checkpoints, 2)
    die(checkpoints)
    read.clear()
    checkpoints = manager_of(tmp_path, 1)
    step, training = restore(checkpoints)
    assert (step, set(read)) == (1, {"manifest.json"})
    assert equal(training.weights(), trained.weights())
    checkpoints.close()


def test_a_manager_that_is_closed_while_an_error_is_on_its_way_leaves_its_copy(tmp_path, read):
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1)
    until(lambda: held() == newest(checkpoints))
    with suppress(KeyError):
        try:
            raise KeyError
        finally:
            checkpoints.close()
    read.clear()
    checkpoints = manager_of(tmp_path, 1)
    assert restore(checkpoints)[0] == 1
    assert set(read) == {"manifest.json"}
    checkpoints.close()


def test_a_process_that_a_rank_has_started_keeps_no_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "_current", None)
    with CheckpointManager(tmp_path, memory_copies=1) as checkpoints:
        assert checkpoints.list() == []
        assert no_holder()


def test_a_python_without_such_memory_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.delattr(os, "pidfd_open")
    with manager_of(tmp_path) as checkpoints:
        save(checkpoints, 1, 2)
    (said,) = caplog.messages
    assert "cannot be kept" in said
    assert "pidfd_open" in said


def test_folders_of_the_search_path_need_not_be_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with manager_of(tmp_path) as checkpoints:
        save(checkpoints, 1)
        until(lambda: held() == newest(checkpoints))


def test_another_run_finds_nothing_and_ends_nothing(tmp_path, monkeypatch, read):
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1)
    until(lambda: held() == newest(checkpoints))
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN}-other {os.getpid()}")
    read.clear()
    with manager_of(tmp_path, 1) as other:
        assert restore(other)[0] == 1
    assert "model.safetensors" in read
    assert held() == newest(checkpoints)
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} {os.getpid()}")
    checkpoints.close()


def test_the_last_attempt_reads_from_memory_and_leaves_none(tmp_path, monkeypatch, read):
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1)
    die(checkpoints)
    monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} 0")
    read.clear()
    with manager_of(tmp_path, 1) as checkpoints:
        assert restore(checkpoints)[0] == 1
        assert set(read) == {"manifest.json"}
        until(no_holder)
        save(checkpoints, 2)


def test_without_room_the_copy_is_left_out_and_that_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(memory_copies, "leaves_room", lambda size_bytes: False)
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1, 2)
    assert held() == []
    (said,) = caplog.messages
    assert said.startswith(
        "Rank 0 on host h: a checkpoint's copy in memory is left out, or a part of it, for step 1"
    )
    assert "less than 10% of the memory would stay free" in said
    checkpoints.close()


def test_room_is_that_of_the_host_and_of_the_control_group(tmp_path, monkeypatch):
    giga = 1 << 30
    monkeypatch.setattr(control_group, "_groups", lambda: [tmp_path])
    (tmp_path / "memory.max").write_text(str(giga))
    (tmp_path / "memory.current").write_text(str(giga // 2))
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {giga // 4}\n")
    assert memory.leaves_room(giga // 2)
    assert not memory.leaves_room(giga * 2 // 3), "a tenth of the limit would not stay free"
    (tmp_path / "memory.max").write_text("max")
    assert memory.leaves_room(giga // 2)
    assert not memory.leaves_room(1 << 60)


def test_a_lost_holder_is_said_once_and_saving_goes_on(tmp_path, caplog):
    checkpoints = manager_of(tmp_path)
    save(checkpoints, 1)
    ((pid, _, _),) = restart_memory.holders(RUN)
    os.kill(pid, signal.SIGKILL)
    until(no_holder)
    save(checkpoints, 2, 3)
    assert [name.step for name in checkpoints.list()] == [1, 2, 3]
    (said,) = caplog.messages
    assert "cannot be kept: the process that holds it is gone, or hangs" in said
    checkpoints.close()


def test_a_holder_ends_with_the_process_that_it_lives_with(tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as executor:
        monkeypatch.setenv(restart_memory.VARIABLE, f"{RUN} {executor.pid}")
        checkpoints = manager_of(tmp_path)
        save(checkpoints, 1)
        until(lambda: held() == newest(checkpoints))
        executor.kill()
    until(no_holder)
    checkpoints.close()


def test_a_holder_ends_if_no_restart_comes(monkeypatch):
    monkeypatch.setattr(holder, "HOLD_SECONDS", 0.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=holder.hold, args=(theirs, os.getpid()))
    thread.start()
    ours.close()
    thread.join(60)
    assert not thread.is_alive()
    theirs.close()


def test_an_agent_ends_the_holders_of_its_own_ranks(tmp_path):
    checkpoints = manager_of(tmp_path)
    until(lambda: [one[2] for one in restart_memory.holders(RUN)] == [os.getppid()])
    restart_memory.end_holders(RUN, agent=1 << 30)
    assert list(restart_memory.holders(RUN))
    restart_memory.end_holders(RUN, agent=os.getppid())
    until(no_holder)
    checkpoints.close()


def test_the_holder_knows_no_secret_of_the_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", "opensesame")
    with manager_of(tmp_path):
        until(lambda: not no_holder())
        ((pid, _, _),) = restart_memory.holders(RUN)
        assert b"opensesame" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_no_process_is_started_unless_copies_are_wanted(tmp_path, monkeypatch):
    with manager_of(tmp_path, copies=0):
        assert not list(restart_memory.holders(RUN))
    monkeypatch.delenv(restart_memory.VARIABLE)
    with warnings.catch_warnings(), manager_of(tmp_path):  # No restart can come.
        warnings.simplefilter("error")
        assert not list(restart_memory.holders(RUN))


@pytest.mark.parametrize("copies", [2, -1])
def test_another_number_of_copies_is_refused(tmp_path, copies):
    with pytest.raises(ValueError, match=f"memory_copies is {copies}"):
        CheckpointManager(tmp_path, memory_copies=copies)
