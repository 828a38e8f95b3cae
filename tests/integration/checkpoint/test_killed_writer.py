"""A writer is killed at every single thing that it asks of the storage; another one just ends."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import small_training
from small_training import Training, equal, save_steps
from sparkdl_runner.checkpoint import CheckpointManager

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# One process imports torch, and forks once for each place to be killed at. Each fork saves the
# same step into a copy of the same directory.
KILLER = """
import os, pathlib, shutil, signal, sys
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
import small_training
from small_training import Training, save_steps
from sparkdl_runner.checkpoint import CheckpointManager, manager
from sparkdl_runner.checkpoint.directory.storage import open_storage

class Counting:
    def __init__(self, storage, fatal):
        self.storage, self.fatal, self.count = storage, fatal, 0
        self.shown, self.is_local = storage.shown, storage.is_local
        self.poll_seconds, self.retry_seconds = storage.poll_seconds, storage.retry_seconds
        self.piece_bytes = storage.piece_bytes
        self.halved, self.os_write, self.fsync = set(), os.write, os.fsync
        os.write, os.fsync = self.write_half, self.flush
    def ask(self):
        self.count += 1
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    def write_half(self, descriptor, data):
        if descriptor in self.halved:
            self.ask()  # in the middle of a file
            return self.os_write(descriptor, data)
        self.halved.add(descriptor)
        return self.os_write(descriptor, data[: (len(data) + 1) // 2])
    def flush(self, descriptor):
        self.halved.discard(descriptor)
        self.ask()
        self.fsync(descriptor)
        self.ask()
    def __getattr__(self, name):
        def call(*arguments):
            self.ask()
            return getattr(self.storage, name)(*arguments)
        return call

save_steps(pathlib.Path(sys.argv[1]) / "warm", 1)  # imports what would take each fork a second
base, fatal, alive = pathlib.Path(sys.argv[1]), 0, True
while alive:
    fatal += 1
    target = base / f"killed-{fatal}"
    shutil.copytree(base / "before", target)
    child = os.fork()
    if child == 0:
        manager.open_storage = lambda *given: Counting(open_storage(*given), fatal)
        training = Training()
        with CheckpointManager(target, keep_last=1) as checkpoints:
            checkpoints.restore(training.model, training.optimizer)
            training.step()
            checkpoints.save(3, training.model, training.optimizer, extra={"step": 3})
        torch.save(training.weights(), base / "after.pt")
        os._exit(0)
    alive = os.WIFSIGNALED(os.waitpid(child, 0)[1])
CheckpointManager(base / "ended").save(1, extra=torch.ones(5_000_000))
print(fatal)
"""


def test_a_reader_finds_the_one_before_or_the_new_one(in_memory: Path) -> None:
    import torch

    weights = save_steps(in_memory / "before", 1, 2)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(in_memory), str(Path(small_training.__file__).parent)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    places = int(done.stdout)
    assert places > 40, "it is killed at fewer places than there are"
    weights[3] = torch.load(in_memory / "after.pt", weights_only=True)
    found = []
    for fatal in range(1, places + 1):
        directory = in_memory / f"killed-{fatal}"
        training = Training()
        with warnings.catch_warnings(), CheckpointManager(directory) as checkpoints:
            warnings.simplefilter("ignore")
            restored = checkpoints.restore(training.model, training.optimizer)
            assert restored is not None
            assert restored.extra == {"step": restored.step}
            assert equal(training.weights(), weights[restored.step])
            found.append(restored.step)
            if fatal % 5:
                continue
            # And training goes on from there: what was left behind is in nobody's way.
            training.step()
            checkpoints.save(restored.step + 1, training.model, training.optimizer)
            checkpoints.wait()
            assert checkpoints.list()[-1].step == restored.step + 1
            left = {path.parent for path in directory.glob("step-*/attempt-*/*")}
            assert left == {directory / str(name) for name in checkpoints.list()}
    assert found == sorted(found), "once committed, it stays committed"
    assert set(found) == {2, 3}
    # The program itself ended while a save was under way, which it finished first.
    with CheckpointManager(in_memory / "ended") as checkpoints:
        assert [checkpoints.verify(name) for name in checkpoints.list()] == [[]]
