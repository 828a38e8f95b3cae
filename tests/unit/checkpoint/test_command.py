"""``checkpoints ls`` and ``checkpoints verify``."""

from __future__ import annotations

import pytest
import torch

from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.cli import main


def save(folder, *steps: int) -> None:
    with CheckpointManager(folder) as checkpoints:
        for step in steps:
            model = torch.nn.Linear(2, 1)
            checkpoints.save(step, model, epoch=1, metrics={"loss": 0.5})
            checkpoints.wait()


def test_what_is_there_is_listed_and_verified(tmp_path, capsys):
    save(tmp_path / "first", 5, 10)
    save(tmp_path / "second", 7)
    assert main(["checkpoints", "ls", str(tmp_path / "first")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "checkpoint",
        "step-5/attempt-0",
        "step-10/attempt-0",
    ]
    assert "loss 0.5" in lines[1]
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "first/step-5/attempt-0: ok",
        "first/step-10/attempt-0: ok",
        "second/step-7/attempt-0: ok",
    ]


def test_damage_is_named_and_is_exit_code_1(tmp_path, capsys):
    save(tmp_path, 5, 10)
    (largest,) = (tmp_path / "step-5" / "attempt-0").glob("model*")
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert main(["checkpoints", "verify", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "step-5/attempt-0: damaged" in text
    assert largest.name in text
    assert "step-10/attempt-0: ok" in text
    (tmp_path / "step-10" / "attempt-0" / "manifest.json").write_text("{}")
    assert main(["checkpoints", "ls", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out


def test_nothing_there_is_exit_code_2(tmp_path, capsys, monkeypatch):
    assert main(["checkpoints", "ls", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"sparkdl-runner checkpoints: there is no checkpoint in {tmp_path}.\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", "ls", "."]) == 2
    assert capsys.readouterr().err.endswith(f" there is no checkpoint in {tmp_path}.\n")
    assert main(["checkpoints", "verify", "nix://bucket/x"]) == 2
    assert "cannot read nix://bucket/x" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["ls", "verify"])
def test_what_is_no_folder_is_said(tmp_path, capsys, monkeypatch, action):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").touch()
    for place, found in (("./nope", "is not there"), ("model.pt", "is a file")):
        assert main(["checkpoints", action, place]) == 2
        assert capsys.readouterr().err == (
            f"sparkdl-runner checkpoints: {(tmp_path / place).resolve()} {found}; it must be a "
            "folder of checkpoints.\n"
        )
