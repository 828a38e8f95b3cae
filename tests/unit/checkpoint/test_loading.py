"""``Checkpoint.load`` reads for anybody, beside a training that saves and removes."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
import torch

from one_module import replace_in
from small_training import Training, equal, save_steps
from sparkdl_runner.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointManager,
    CheckpointStorageError,
    loading,
)
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_newest_or_a_step(tmp_path):
    weights = save_steps(tmp_path, 1, 2, 3)
    before = files_of(tmp_path)
    newest = Checkpoint.load(tmp_path)
    assert (newest.step, newest.attempt, newest.world_size) == (3, 0, 1)
    assert newest.extra == {"step": 3}
    assert equal(newest.model, weights[3])
    assert newest.path == f"file://{tmp_path}/step-3/attempt-0"
    second = Checkpoint.load(str(tmp_path), which=2)
    assert equal(second.model, weights[2])
    Training().model.load_state_dict(second.model)
    assert files_of(tmp_path) == before, "nothing is written"


def test_the_training_goes_on_meanwhile(tmp_path):
    """A load takes no attempt, so that the training's own next save is committed."""
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, Training().model)
        checkpoints.wait()
        assert Checkpoint.load(tmp_path).step == 1
        checkpoints.save(2, Training().model)
        checkpoints.wait()
    assert Checkpoint.load(tmp_path).step == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_a_checkpoint_that_is_removed_while_it_is_read(tmp_path, monkeypatch, file):
    save_steps(tmp_path, 1, 2)
    opened = LocalStorage.open

    def open_after_removal(self, name):
        if name.startswith("step-2/") and name.endswith(file):
            shutil.rmtree(tmp_path / "step-2")
        return opened(self, name)

    monkeypatch.setattr(LocalStorage, "open", open_after_removal)
    assert Checkpoint.load(tmp_path).step == 1
    save_steps(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"step 2 in .* was removed by its training while"):
        Checkpoint.load(tmp_path, which=2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("which", ["newest", 2])
def test_a_manifest_that_is_being_written_is_read_once_it_is_there(tmp_path, monkeypatch, which):
    """An older one is there only where it is not what is asked for."""
    save_steps(tmp_path, *([1, 2] if which == 2 else [2]))
    manifest = tmp_path / "step-2" / "attempt-0" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(b"")
    replace_in(monkeypatch, loading, "time", sleep=lambda _: manifest.write_bytes(content))
    assert Checkpoint.load(tmp_path, which).step == 2


@pytest.mark.filterwarnings("error")
def test_the_checkpoint_before_one_that_is_being_written(tmp_path, monkeypatch):
    save_steps(tmp_path, 1, 2)
    manifest = tmp_path / "step-2" / "attempt-0" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:20])
    opened = LocalStorage.open

    def open_and_write(self, name):
        if name.startswith("step-1/"):
            manifest.write_bytes(content)
        return opened(self, name)

    monkeypatch.setattr(LocalStorage, "open", open_and_write)
    assert Checkpoint.load(tmp_path).step == 1


def test_a_manifest_that_stays_damaged_is_named_once(tmp_path):
    save_steps(tmp_path, 1)
    (tmp_path / "step-1" / "attempt-0" / "manifest.json").write_bytes(b"{")
    for which in ("newest", "best", 1):
        with (
            pytest.warns(UserWarning, match="passed over: manifest.json is damaged") as told,
            pytest.raises(CheckpointError, match=r"No checkpoint .*is whole; the warnings before"),
        ):
            Checkpoint.load(tmp_path, which)
        assert len(told) == 1
        assert told[0].filename == __file__


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    save_steps(tmp_path, 1, 2)
    (tmp_path / "step-2" / "attempt-0" / "model.safetensors").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"step-2/attempt-0 is passed over: model\.safetensors"):
        assert Checkpoint.load(tmp_path).step == 1
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(CheckpointError, match=r"No checkpoint of step 2 in .* is whole"),
    ):
        Checkpoint.load(tmp_path, which=2)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint in file://"):
        Checkpoint.load(tmp_path)
    save_steps(tmp_path / "shop", 1, 2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*; there are of 1, 2"):
        Checkpoint.load(tmp_path / "shop", 7)
    with pytest.raises(CheckpointError, match="in folders of it: name one of shop"):
        Checkpoint.load(tmp_path)
    with pytest.raises(ValueError, match="which is 'last'; expected 'newest', 'best' or"):
        Checkpoint.load(tmp_path, "last")
    with pytest.raises(ValueError, match="which is -1"):
        Checkpoint.load(tmp_path, -1)
    with pytest.raises(TypeError, match=r"which is 1\.5"):
        Checkpoint.load(tmp_path, 1.5)


def test_the_best_by_the_trainings_own_metric(tmp_path):
    losses = [0.5, 0.2, float("nan"), 0.4]
    with CheckpointManager(tmp_path, keep_last=9, best_metric="loss") as checkpoints:
        for step, loss in enumerate(losses, 1):
            checkpoints.save(step, extra=step, metrics={"loss": loss, "accuracy": 1 - loss})
    assert Checkpoint.load(tmp_path, "best").step == 2
    (tmp_path / "step-2" / "attempt-0" / "extra.safetensors").write_bytes(b"x")
    with pytest.warns(UserWarning, match="passed over"):
        assert Checkpoint.load(tmp_path, "best").step == 4


def test_a_best_without_a_metric(tmp_path):
    with CheckpointManager(tmp_path / "none") as checkpoints:
        checkpoints.save(1, metrics={"loss": 0.5})
    with pytest.raises(CheckpointError, match=r"no best_metric \(metrics saved: loss\)\. Load the"):
        Checkpoint.load(tmp_path / "none", "best")
    with CheckpointManager(tmp_path / "nan", best_metric="loss") as checkpoints:
        checkpoints.save(1, metrics={"loss": float("nan")})
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* has a value of loss"):
        Checkpoint.load(tmp_path / "nan", "best")


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    save_steps(tmp_path, 1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CheckpointStorageError, match=r"cannot be listed .*Permission denied"):
        Checkpoint.load(tmp_path)


def test_nothing_torn_is_read_while_a_training_saves_and_removes(in_memory):
    """Each weight of a checkpoint is its step, so that a mixture of two would show."""
    model = torch.nn.Linear(64, 64)
    saved, stop = threading.Event(), threading.Event()

    def train():
        step = 0
        with CheckpointManager(in_memory, keep_last=2) as checkpoints:
            while not stop.is_set():
                step += 1
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.fill_(step)
                checkpoints.save(step, model)
                if step == 1:
                    checkpoints.wait()
                    saved.set()

    training = threading.Thread(target=train)
    training.start()
    try:
        assert saved.wait(300)
        steps: list[int] = []
        while len(steps) < 20 or steps[-1] == steps[0]:
            checkpoint = Checkpoint.load(in_memory)
            steps.append(checkpoint.step)
            assert all((one == checkpoint.step).all() for one in checkpoint.model.values())
    finally:
        stop.set()
        training.join()
    assert steps == sorted(steps)
