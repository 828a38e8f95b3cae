"""Whatever happens to a file of a checkpoint, it is seen, and the one before is used."""

from __future__ import annotations

import io
import random
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_training import Training, equal, save_steps
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.directory.manifest import Manifest
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.errors import DamageError

OLD, NEW = "step-1/attempt-0", "step-2/attempt-0"
FILES = [
    "manifest.json",
    "rank-0.json",
    "model.safetensors",
    "optimizer.safetensors",
    "extra.safetensors",
    "rng-0.safetensors",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("saved")
    return directory, save_steps(directory, 1, 2)


@pytest.fixture
def copied(saved, tmp_path) -> tuple[Path, dict]:
    """A copy to be damaged, and the weights at each step."""
    directory, weights = saved
    shutil.copytree(directory, tmp_path / "copy")
    return tmp_path / "copy", weights


def restored_step(directory: Path, weights: dict) -> int | None:
    """What a restore ends with; it must be whole."""
    training = Training()
    with warnings.catch_warnings(), CheckpointManager(directory) as checkpoints:
        warnings.simplefilter("ignore")
        restored = checkpoints.restore(training.model, training.optimizer)
    if restored is None:
        return None
    assert equal(training.weights(), weights[restored.step])
    assert restored.extra == {"step": restored.step}
    return restored.step


def test_every_file_is_known(saved):
    directory, _ = saved
    assert sorted(path.name for path in (directory / NEW).iterdir()) == sorted(FILES)
    manager = CheckpointManager(directory)
    assert [str(name) for name in manager.list()] == [OLD, NEW]
    assert [manager.verify(name) for name in manager.list()] == [[], []]
    manager.close()


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_anywhere_is_seen(saved, file, tmp_path):
    """Some bits of each file, the first and last among them."""
    directory, _ = saved
    shutil.copytree(directory / NEW, tmp_path / NEW)
    manager = CheckpointManager(tmp_path)
    path = tmp_path / NEW / file
    whole = path.read_bytes()
    every_bit = range(8 * len(whole))
    bits = [*every_bit[:8], *random.Random(0).sample(every_bit, 48), *every_bit[-8:]]
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        problems = manager.verify(NEW)
        assert len(problems) == 1, f"bit {bit} of {file}"
        assert file in problems[0]
    path.write_bytes(whole)
    assert manager.verify(NEW) == []
    manager.close()


@pytest.mark.parametrize("file", FILES)
def test_a_shortened_or_longer_file_is_seen(saved, file, tmp_path):
    directory, _ = saved
    shutil.copytree(directory / NEW, tmp_path / NEW)
    manager = CheckpointManager(tmp_path)
    path = tmp_path / NEW / file
    whole = path.read_bytes()
    lengths = {0, 1, len(whole) // 2, len(whole) - 1, *range(0, len(whole), len(whole) // 12 + 1)}
    for damaged in [*(whole[:length] for length in sorted(lengths)), whole + b"\0", whole * 2]:
        path.write_bytes(damaged)
        assert len(manager.verify(NEW)) == 1
    path.unlink()
    assert len(manager.verify(NEW)) == 1
    manager.close()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "harm", ["flip", "truncate", "empty", "remove", "directory", "link", "fifo", "unreadable"]
)
def test_a_restore_takes_the_one_before(copied, file, harm):
    directory, weights = copied
    path = directory / NEW / file
    whole = path.read_bytes()
    path.unlink()
    if harm == "flip":
        path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 4]) + whole[-19:])
    elif harm == "truncate":
        path.write_bytes(whole[: len(whole) // 2])
    elif harm == "empty":
        path.touch()
    elif harm == "directory":
        path.mkdir()
    elif harm == "link":
        (directory / "elsewhere").write_bytes(whole)
        path.symlink_to(directory / "elsewhere")
    elif harm == "fifo":
        import os

        os.mkfifo(path)
    elif harm == "unreadable":
        path.symlink_to(path)
    assert restored_step(directory, weights) == 1


def test_what_is_passed_over_is_said(copied):
    directory, _ = copied
    (directory / NEW / "model.safetensors").unlink()
    with (
        CheckpointManager(directory) as checkpoints,
        pytest.warns(
            UserWarning, match=r"step-2/attempt-0 is passed over .*model\.safetensors is gone"
        ),
    ):
        assert checkpoints.restore().step == 1


def test_if_nothing_is_whole_training_begins_from_the_start(copied):
    directory, _ = copied
    for name in (OLD, NEW):
        (directory / name / "rng-0.safetensors").write_bytes(b"")
    with (
        CheckpointManager(directory) as checkpoints,
        pytest.warns(UserWarning, match="None of the 2 checkpoints"),
    ):
        assert checkpoints.restore() is None


def test_a_checkpoint_copied_to_another_step_is_none(copied):
    directory, weights = copied
    shutil.copytree(directory / NEW, directory / "step-9" / "attempt-0")
    assert restored_step(directory, weights) == 2


def test_whole_files_of_something_else_are_damage(copied):
    """Correct by their checksums, and no checkpoint that this package could have written."""
    from dataclasses import replace

    from sparkdl_runner.checkpoint.directory.files import FileEntry
    from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest

    directory, weights = copied
    place = directory / NEW
    manifest = Manifest.from_bytes((place / MANIFEST).read_bytes())
    pickle = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
    (place / "model.safetensors").write_bytes(pickle)
    forged = FileEntry.of("model.safetensors", pickle)
    files = tuple(
        forged if entry.path == "model.safetensors" else entry for entry in manifest.files
    )
    (place / MANIFEST).write_bytes(replace(manifest, files=files).to_bytes())
    assert restored_step(directory, weights) == 1


def test_what_is_wrong_with_a_file_of_a_service_is_not_asked_for_again():
    from sparkdl_runner.checkpoint.directory.files import read_file

    opened = []

    class Service:
        is_local = False
        piece_bytes = 1 << 20
        retry_seconds = 60.0

        def open(self, name):
            opened.append(name)
            return io.BytesIO(bytes(11))

    with pytest.raises(DamageError, match="is larger than 10 bytes") as caught:
        read_file(Service(), "step-1", "manifest.json", limit_bytes=10)
    assert type(caught.value) is DamageError, "it can be read"
    assert len(opened) == 1


def test_a_manifest_of_a_later_format_is_passed_over(copied):
    directory, weights = copied
    path = directory / NEW / "manifest.json"
    fields = unseal(path.read_bytes())
    path.write_bytes(seal({**fields, "format_version": 3}))
    assert restored_step(directory, weights) == 1
    path.write_bytes(seal({"format_version": 1, "step": 2}))
    assert restored_step(directory, weights) == 1
    with pytest.raises(DamageError, match=r"has format version 'x{59}, and") as raised:
        Manifest.from_bytes(seal({**fields, "format_version": "x" * 9_000}))
    assert len(str(raised.value)) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.data())
def test_a_sealed_text_notices_any_change(fields, data):
    text = seal(fields)
    assert repr(unseal(text)) == repr(dict(sorted(unseal(text).items())))
    position = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.integers(1, 255))
    changed = bytearray(text)
    changed[position] ^= change
    with pytest.raises(DamageError):
        unseal(bytes(changed))
    with pytest.raises(DamageError):
        unseal(text[:position])
    with pytest.raises(DamageError):
        unseal(text + b" ")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_anything_else_is_no_sealed_text(content):
    with pytest.raises(DamageError):
        unseal(content)


def test_deeply_nested_text_is_no_sealed_text():
    with pytest.raises(DamageError):
        unseal(b"[" * 100_000)


def forge(directory: Path, change) -> None:
    """Writes the newest checkpoint's manifest anew, as somebody can who knows its form."""
    path = directory / NEW / "manifest.json"
    fields = unseal(path.read_bytes())
    change(fields)
    path.write_bytes(seal(fields))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["files"][0].update(path="../../../secret"),
        lambda fields: fields["files"][0].update(path="/etc/hostname"),
        lambda fields: fields["files"][0].update(path=5),
        lambda fields: fields["files"][0].update(size_bytes=-1),
        lambda fields: fields.update(files={}),
        lambda fields: fields.update(metrics={"loss": "low"}),
        lambda fields: fields.update(parameters={"weight": {}}),
        lambda fields: fields.update(parameters=[]),
        lambda fields: fields.update(resumable=None),
    ],
)
def test_a_forged_manifest_is_passed_over(copied, change):
    directory, weights = copied
    forge(directory, change)
    assert restored_step(directory, weights) == 1


def test_a_listed_file_is_not_looked_for_behind_a_link(copied, tmp_path):
    import hashlib

    directory, _ = copied
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"secret")
    (directory / NEW / "sub").symlink_to(tmp_path / "elsewhere")
    known = {"size_bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    forge(directory, lambda fields: fields["files"].append({"path": "sub/secret", **known}))
    with CheckpointManager(directory) as checkpoints:
        (problem,) = checkpoints.verify(NEW)
    assert "sub/secret cannot be read" in problem


def test_the_description_of_shards_must_be_one():
    from sparkdl_runner.checkpoint.directory.shards import metadata_of

    shard = {"path": "sharded/rank-0.safetensors", "key": "w@0", "offsets": [0], "sizes": [2]}
    tensor = {"shape": [2], "dtype": "torch.float32", "shards": [shard]}
    good = {"tensors": {"w": tensor}, "values": {"v": {"path": "p", "key": "v"}}}
    assert metadata_of(seal(good)) == good
    for wrong in (
        {**good, "tensors": []},
        {**good, "tensors": {"w": {**tensor, "shape": ["2"]}}},
        {**good, "tensors": {"w": {**tensor, "shards": [{**shard, "key": None}]}}},
        {**good, "values": {"v": {"path": "p"}}},
        {"values": {}},
    ):
        with pytest.raises(DamageError):
            metadata_of(seal(wrong))
