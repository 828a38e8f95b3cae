"""Checkpoints hold tensors and JSON and no pickle, and come back as they were."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from small_training import Training, equal, save_steps
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.checkpoint.directory import state_files
from sparkdl_runner.checkpoint.directory.files import FileEntry
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Manifest
from sparkdl_runner.checkpoint.save.host_copies import HostCopies

PLACE = "step-1/attempt-0"
SOME = torch.arange(6.0).reshape(2, 3)
STATE = {
    "none": None,
    "numbers": [True, -1, 2**70, 0.1, float("inf")],
    "text": "a\x00é",
    "by number": {0: {"step": torch.tensor(3.0)}, None: 1, 1.5: "x", True: ()},
    "others": [b"\x00\xff", {3, "x"}, 1j, torch.float16, torch.device("cpu"), {(1, 2): 3}],
    "pair": (0.9, [0.999, ()]),
    "milestones": Counter({30: 1, 80: 2}),
    "ordered": OrderedDict(b=1, a=2),
    "size": torch.Size([1, 2]),
    "twice": [SOME, SOME],
    "empty": torch.empty(0, 3),
    "images": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "kinds": [
        SOME.to(getattr(torch, name))
        for name in ("bfloat16", "float16", "float64", "int8", "bool", "complex64", "complex128")
    ],
}


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.stride()) == (other.dtype, other.stride())
            and torch.equal(one, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def files_of(name: str, value: object) -> dict[str, bytes]:
    flat = state_files.flatten(name, value, HostCopies().copy)
    return dict(state_files.files_of(f"{name}.safetensors", flat))


@pytest.mark.parametrize("file_bytes", [64 << 20, 50])
def test_a_state_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch, file_bytes: int) -> None:
    monkeypatch.setattr(state_files, "_FILE_BYTES", file_bytes)
    monkeypatch.setattr(state_files, "_MOST_FILES", 1000)
    files = files_of("extra", STATE)
    assert (len(files) == 1) == (file_bytes > 1000)
    assert {state_files.state_in(path) for path in files} == {"extra"}
    found = state_files.value_of("extra.safetensors", files.__getitem__)
    assert same(found, STATE)
    assert found["twice"][0] is not SOME
    assert found["twice"][0].data_ptr() == found["twice"][1].data_ptr()
    model = torch.nn.BatchNorm1d(3).state_dict()
    files = files_of("model", model)
    found = state_files.value_of("model.safetensors", files.__getitem__)
    assert found._metadata == model._metadata


def test_the_format_stays() -> None:
    """Versions read one another's files, so the bytes of the format must not change."""
    state = {"w": torch.zeros(2, 1), "opt": [(1.5, b"a"), torch.float16], 3: True}
    (content,) = files_of("model", state).values()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = header.pop("__metadata__")
    assert header == {"w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}}
    assert about.keys() == {"state", "files"}
    assert about["state"] == (
        '{"is": "dict", "items": [["w", {"is": "tensor", "name": "w", "order": [0, 1], "complex": '
        'false}], ["opt", [{"is": "tuple", "items": [1.5, {"is": "bytes", "items": [97]}]}, '
        '{"is": "dtype", "name": "float16"}]], [3, true]]}'
    )
    manifest = Manifest(
        step=1,
        epoch=None,
        attempt=0,
        world_size=1,
        created="2026-01-01T00:00:00+00:00",
        sharded=False,
        parameters={"w": {"shape": [2, 1], "dtype": "float32"}},
        optimizer_class="Adam",
        metrics={"loss": 0.5},
        loader=None,
        resumable={},
        files=(FileEntry(path="model.safetensors", size_bytes=1, sha256="0"),),
    )
    assert manifest.to_bytes().decode() == (
        '{"attempt":0,"created":"2026-01-01T00:00:00+00:00","epoch":null,"files":[{"path":'
        '"model.safetensors","sha256":"0","size_bytes":1}],"format_version":2,"loader":null,'
        '"metrics":{"loss":0.5},"optimizer_class":"Adam","parameters":{"w":{"dtype":"float32",'
        '"shape":[2,1]}},"resumable":{},"sha256_of_the_rest":'
        '"220565a5ba38548c8527a6e41086a0685bc84a35752f24e54087d86b78b7fd22",'
        '"sharded":false,"step":1,"versions":{},"world_size":1}'
    )


def test_any_reader_of_safetensors_opens_a_checkpoint(tmp_path: Path) -> None:
    weights = save_steps(tmp_path, 1)
    names = {path.name for path in (tmp_path / PLACE).iterdir()}
    assert {path.rpartition(".")[2] for path in names} == {"safetensors", "json"}
    with safe_open(tmp_path / PLACE / "model.safetensors", framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - it is no dict
            assert torch.equal(opened.get_tensor(name), weights[1][name])


def test_damage_of_a_following_file_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "_FILE_BYTES", 50)
    save_steps(tmp_path, 1)
    training = Training()
    with CheckpointManager(tmp_path) as checkpoints:
        assert checkpoints.restore(training.model, training.optimizer).step == 1
        (tmp_path / PLACE / "model~1.safetensors").unlink()
        with pytest.warns(UserWarning, match="None of the") as told:
            assert checkpoints.restore(training.model, training.optimizer) is None
    assert "model~1.safetensors is gone" in str(told[0].message)


def test_checkpoints_of_the_first_format_are_read(tmp_path: Path) -> None:
    """They were pickled by torch, and are loaded by its reader of plain values alone."""
    weights = save_steps(tmp_path, 1)
    place = tmp_path / PLACE
    manifest = Manifest.from_bytes((place / MANIFEST).read_bytes())
    files = []
    for entry in manifest.files:
        path = place / entry.path
        if path.suffix == state_files.SUFFIX:
            value = state_files.value_of(entry.path, lambda name: (place / name).read_bytes())
            torch.save(value, path.with_suffix(".pt"))
            content = path.with_suffix(".pt").read_bytes()
            path.unlink()
            entry = FileEntry.of(f"{path.stem}.pt", content)
        files.append(entry)
    (place / MANIFEST).unlink()
    old = replace(manifest, files=tuple(files), format_version=1)
    (place / MANIFEST).write_bytes(old.to_bytes())
    training = Training()
    with CheckpointManager(tmp_path) as checkpoints:
        assert checkpoints.verify(PLACE) == []
        restored = checkpoints.restore(training.model, training.optimizer)
    assert restored.extra == {"step": 1}
    assert equal(training.weights(), weights[1])
