"""A host without room says nothing against a checkpoint, and a forged one takes none."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path

import pytest

from small_training import Training, save_steps
from sparkdl_runner.checkpoint import CheckpointManager, CheckpointStorageError
from sparkdl_runner.checkpoint.directory import memory, reader
from sparkdl_runner.checkpoint.directory.memory import available_bytes, require_memory
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError

HUGE_BYTES = 1 << 42


def forge_huge(checkpoint: Path) -> None:
    """Makes its file of weights one that is huge and takes no room on the disk."""
    os.truncate(checkpoint / "model.safetensors", HUGE_BYTES)
    manifest = checkpoint / "manifest.json"
    fields = unseal(manifest.read_bytes())
    (entry,) = (one for one in fields["files"] if one["path"] == "model.safetensors")
    entry |= {"size_bytes": HUGE_BYTES, "sha256": hashlib.sha256(b"").hexdigest()}
    manifest.write_bytes(seal(fields))


def restored(directory: Path) -> int | None:
    training = Training()
    with warnings.catch_warnings(), CheckpointManager(directory) as checkpoints:
        warnings.simplefilter("ignore")
        # Nobody makes room meanwhile.
        checkpoints._storage.retry_seconds = 0
        found = checkpoints.restore(training.model, training.optimizer)
    return None if found is None else found.step


def test_a_file_without_end_is_not_read_and_the_one_before_is_used(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    forge_huge(tmp_path / "step-2" / "attempt-0")
    assert restored(tmp_path) == 1


def test_where_no_checkpoint_has_room_training_does_not_begin_from_the_start(
    tmp_path: Path,
) -> None:
    save_steps(tmp_path, 1)
    forge_huge(tmp_path / "step-1" / "attempt-0")
    with pytest.raises(CheckpointStorageError):
        restored(tmp_path)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPU: can't allocate memory")]
)
def test_a_lack_of_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    save_steps(tmp_path, 1)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(reader, "value_of", fail)
    with pytest.raises(CheckpointStorageError):
        restored(tmp_path)


def test_what_is_free_is_the_hosts_or_what_the_group_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = available_bytes()
    assert free is not None
    assert free > 1 << 20
    monkeypatch.setattr(memory.control_group, "limit_bytes", lambda: 100)
    assert available_bytes() == 100
    require_memory(64 << 20, "x")
    with pytest.raises(UnreadableError, match="x has 67,108,865 bytes, and 100 bytes of memory"):
        require_memory((64 << 20) + 1, "x")
    monkeypatch.setattr(memory, "_host_bytes", lambda: None)
    monkeypatch.setattr(memory.control_group, "limit_bytes", lambda: None)
    require_memory(HUGE_BYTES, "x")


def test_json_of_nothing_but_empty_lists_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'{"files":[' + b"[]," * 200_000 + b"[]]}"
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(DamageError, match="empty lists"):
        unseal(text)


def test_json_of_many_shards_is_read() -> None:
    fields = {"shards": [{"offsets": [n, 0], "sizes": [1, 1]} for n in range(50_000)]}
    assert unseal(seal(fields)) == fields
