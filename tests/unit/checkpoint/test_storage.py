"""Where checkpoints can be kept, and that credentials are kept out of what is said."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from small_training import Training, equal, save_steps
from sparkdl_runner.base import retrying
from sparkdl_runner.checkpoint import CheckpointError, CheckpointManager
from sparkdl_runner.checkpoint.directory.files import read_entry
from sparkdl_runner.checkpoint.directory.state_files import FlatState
from sparkdl_runner.checkpoint.directory.storage import RemoteStorage, directory_url, open_storage
from sparkdl_runner.checkpoint.save.commit import Commit, SaveRequest
from sparkdl_runner.checkpoint.save.policy import SavePolicy


def test_urls_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, expected in (
        (tmp_path, f"file://{tmp_path}"),
        (str(tmp_path), f"file://{tmp_path}"),
        ("runs/a", f"file://{tmp_path}/runs/a"),
        (f"file:{tmp_path}/", f"file://{tmp_path}"),
        ("/Volumes/c/s/v/x", "dbfs:/Volumes/c/s/v/x"),
        ("dbfs:/x", "dbfs:/x"),
        ("s3a://bucket/x/", "s3a://bucket/x"),
    ):
        assert directory_url(given) == expected
    with pytest.raises(ValueError, match="credentials"):
        directory_url("s3a://key:secret@bucket/x")
    with pytest.raises(TypeError, match="URL or a path"):
        directory_url("")


def test_mounted_directories_are_asked_less_often(tmp_path):
    assert open_storage(f"file://{tmp_path}").poll_seconds == 0.05
    assert open_storage("dbfs:/Volumes/c/s/v").poll_seconds == 0.5
    assert open_storage("memory://x").poll_seconds == 0.5


@pytest.fixture
def url(request, tmp_path: Path) -> Iterator[str]:
    yield {"local": f"file://{tmp_path}", "fsspec": f"memory://{tmp_path.name}"}[request.param]
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("url", ["local", "fsspec"], indirect=True)
def test_storages_do_the_same(url):
    storage = open_storage(url)
    assert storage.names() == storage.names("a") == []
    assert not storage.exists("a/b/c")
    for name in ("a/b/c", "a/d", "e"):
        storage.write(name, b"content")
    assert sorted(storage.names()) == ["a/b/c", "a/d", "e"]
    assert sorted(storage.names("a")) == ["a/b/c", "a/d"]
    assert storage.exists("a/b/c")
    assert not storage.exists("a/b")
    with storage.open("a/b/c") as opened:
        assert bytes(opened.read(4)) == b"cont"
        assert bytes(opened.read(4)) == b"ent"
    with pytest.raises(FileExistsError):
        storage.write("a/d", b"")
    for content in (b"longer", b"new"):
        storage.replace("a/d", content)
    with storage.open("a/d") as opened:
        assert bytes(opened.read(9)) == b"new"
    with pytest.raises(FileNotFoundError):
        storage.open("a/x")
    storage.delete("a/b/c")
    storage.delete("a/b/c")
    storage.delete_directory("a/b", [])
    storage.delete_directory("nothing/here", [])
    assert sorted(storage.names()) == ["a/d", "e"]


@pytest.mark.parametrize("losses", [1, 4, 5])
def test_a_folder_that_another_rank_removes_while_it_is_empty_is_made_again(
    tmp_path, monkeypatch, losses
):
    """A rank that gives up its part of a checkpoint does that."""
    storage = open_storage(f"file://{tmp_path}")
    make, left = type(storage)._make_directories, [losses]

    def lose(self, directory):
        make(self, directory)
        if left[0]:
            left[0] -= 1
            shutil.rmtree(tmp_path / "step-1")

    monkeypatch.setattr(type(storage), "_make_directories", lose)
    if losses == 5:
        with pytest.raises(FileNotFoundError):
            storage.write("step-1/attempt-0/a", b"content")
        return
    storage.write("step-1/attempt-0/a", b"content")
    assert (tmp_path / "step-1/attempt-0/a").read_bytes() == b"content"


@pytest.mark.parametrize("url", ["local", "fsspec"], indirect=True)
@pytest.mark.parametrize("outages", [2, 1000])
def test_an_outage_is_no_damage(url, outages, monkeypatch):
    """Where nothing can be read, training does not begin as if nothing were there."""
    save_steps(url, 1, 2)
    monkeypatch.setattr(retrying, "pauses_of", lambda seconds: iter((0, 0)))
    kind = type(open_storage(url))
    real, left = kind.open, [outages]

    def answer_no(storage, name):
        if "step-" in name and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Slow Down")
        return real(storage, name)

    monkeypatch.setattr(kind, "open", answer_no)
    with CheckpointManager(url) as checkpoints:
        if outages == 2:
            assert checkpoints.restore().step == 2
            return
        with (
            pytest.warns(UserWarning, match="Slow Down"),
            pytest.raises(CheckpointError, match="restores none of the 2 checkpoints"),
        ):
            checkpoints.restore()


@pytest.mark.parametrize("url", ["fsspec"], indirect=True)
def test_checkpoints_on_any_fsspec_filesystem(url):
    weights = save_steps(url, 1, 2)
    storage = open_storage(url)
    assert isinstance(storage, RemoteStorage)
    assert storage.free_bytes() is None
    training = Training()
    with CheckpointManager(url, keep_last=1) as checkpoints:
        restored = checkpoints.restore(training.model, training.optimizer)
        assert restored.path == f"{url}/step-2/attempt-0"
        assert equal(training.weights(), weights[2])
        checkpoints.save(3, training.model)
        checkpoints.wait()
        assert [name.step for name in checkpoints.list()] == [3]
        assert checkpoints.verify("step-3/attempt-1") == []
    assert {name.split("/")[0] for name in storage.names()} == {"step-3", "attempts"}


@pytest.mark.parametrize("url", ["fsspec"], indirect=True)
def test_damage_on_any_fsspec_filesystem(url):
    weights = save_steps(url, 1, 2)
    memory = fsspec.filesystem("memory")
    (path,) = (
        path for path in memory.find("/") if path.endswith("step-2/attempt-0/model.safetensors")
    )
    content = bytearray(memory.cat(path))
    content[len(content) // 2] ^= 1
    memory.pipe(path, bytes(content))
    training = Training()
    with (
        CheckpointManager(url) as checkpoints,
        pytest.warns(UserWarning, match=r"model\.safetensors was changed"),
    ):
        assert checkpoints.restore(training.model, training.optimizer).step == 1
    assert equal(training.weights(), weights[1])


def test_a_write_that_failed_half_way_is_repeated_without_a_removal(tmp_path, monkeypatch):
    """On S3, Arrow's removal of a file writes a marker of its folder: one more that can fail."""
    replace = RemoteStorage.replace
    failed = []

    def fail_half_way(self, name, content):
        if failed:
            return replace(self, name, content)
        replace(self, name, content[:9])
        failed.append(name)
        raise TimeoutError(errno.ETIMEDOUT, "no answer")

    def refuse(self, name):
        raise AssertionError(f"{name} is removed")

    monkeypatch.setattr(RemoteStorage, "replace", fail_half_way)
    monkeypatch.setattr(RemoteStorage, "delete", refuse)
    storage = open_storage(f"memory://{tmp_path.name}")
    commit = Commit(
        storage,
        SaveRequest(manifest=SimpleNamespace(name="step-1"), rank=0, hosts=["a"], states={}),
        threading.Event(),
        SavePolicy(),
    )
    commit._write("model", b"all of the content")
    assert failed == ["step-1/model"]
    with storage.open("step-1/model") as opened:
        assert opened.read() == b"all of the content"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("url", "rank", "most"), [("memory:", 0, 4), ("memory:", 1, 4), ("", 1, 1)]
)
def test_remote_storage_is_given_several_files_at_once(tmp_path, monkeypatch, url, rank, most):
    """HDFS may take half a second to close a file. On a local disk one after the other is best."""
    storage = open_storage(f"{url}//{tmp_path.name}" if url else tmp_path.as_uri())
    lock, others, listed = threading.Lock(), threading.Event(), threading.Event()
    running, largest, beside_list = set(), [], set()
    files = [f"state-{number}.safetensors" for number in range(9)]
    name = "replace" if url else "write"
    write = getattr(type(storage), name)

    def slow_write(self, path, content):
        with lock:
            running.add(path)
            largest.append(len(running))
            if len(running) == most:
                others.set()
            if path.endswith(".json"):
                beside_list.update(running - {path})
                listed.set()
        if not others.wait(120):
            others.set()  # They do not come: nobody else need wait for them.
        if path.endswith(files[-1]):
            # Rank 0's list begins beside it. Another rank's would only come too early.
            listed.wait(0.2 if rank else 120)
        write(self, path, content)
        with lock:
            running.remove(path)

    monkeypatch.setattr(type(storage), name, slow_write)
    job = SaveRequest(
        manifest=SimpleNamespace(name="step-1"),
        rank=rank,
        hosts=["a", "b"],
        states={path: FlatState(path, {}) for path in files},
    )
    entries = Commit(storage, job, threading.Event(), SavePolicy())._write_part()
    assert [entry.path for entry in entries] == [*files, f"rank-{rank}.json"]
    assert max(largest) == most
    assert bool(beside_list) == (rank == 0), "rank 0 takes what another rank lists"
    for entry in entries:
        read_entry(storage, "step-1", entry)
    fsspec.filesystem("memory").store.clear()


def test_the_error_of_one_of_several_files_is_the_one_that_is_told(tmp_path, monkeypatch):
    replace = RemoteStorage.replace

    def refuse(self, path, content):
        if path.endswith("state-1.safetensors"):
            raise PermissionError(errno.EACCES, "not this one")
        replace(self, path, content)

    monkeypatch.setattr(RemoteStorage, "replace", refuse)
    storage = open_storage(f"memory://{tmp_path.name}")
    job = SaveRequest(
        manifest=SimpleNamespace(name="step-1"),
        rank=0,
        hosts=["a"],
        states={f"state-{number}.safetensors": FlatState("", {}) for number in range(9)},
    )
    with pytest.raises(PermissionError, match="not this one"):
        Commit(storage, job, threading.Event(), SavePolicy()).write()
    assert storage.names("step-1") == [], "nothing of it is left"
    fsspec.filesystem("memory").store.clear()
