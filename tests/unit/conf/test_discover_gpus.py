"""The GPU discovery script: what it tells Spark of what nvidia-smi says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "conf" / "spark" / "discover_gpus.sh"

TWO_GPUS = """\
GPU 0: NVIDIA A10G (UUID: GPU-0c1d6c7e-30ad-4ff5-0d2d-7d1e1a0b9e51)
GPU 1: NVIDIA A10G (UUID: GPU-93a5b1f0-7d5c-9b1e-f7a4-5c0c3b8a6f22)
"""
ONE_IS_CUT = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-a1b2c3d4-d33d-2b2c-524d-000000000000)
"""
OLD_DRIVER = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb Device 0: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/7/0)
"""
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def discover(tmp_path: Path, listing: str | None, exit_code: int = 0, **environment: str):
    """Runs the script beside an nvidia-smi that prints ``listing``; None for no nvidia-smi."""
    if listing is not None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(
            f'#!/bin/sh\n[ "$*" = -L ] || exit 9\ncat <<"END"\n{listing}END\nexit {exit_code}\n'
        )
        fake.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    # Only the fake one may be found, where this machine has a real one.
    path = f"{tmp_path}:{_without_nvidia_smi(tmp_path)}"
    return subprocess.run(
        ["/bin/bash", str(SCRIPT)],
        env={**kept, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _without_nvidia_smi(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "cat").unlink(missing_ok=True)
    (folder / "cat").symlink_to("/bin/cat")
    return folder


def addresses(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {"name", "addresses"}
    assert found["name"] == "gpu"
    return found["addresses"]


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (TWO_GPUS, ["0", "1"]),
        (TWO_GPUS.splitlines()[1] + "\n", ["1"]),
        (
            ONE_IS_CUT,
            [
                "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
                "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
                "1",
            ],
        ),
        (OLD_DRIVER, ["MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/7/0"]),
    ],
)
def test_whole_gpus_have_numbers_and_instances_their_uuids(tmp_path, listing, expected):
    assert addresses(discover(tmp_path, listing)) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ["0"]),
        ("1,0", ["0", "1"]),
        (" 1 , 0 ", ["0", "1"]),
        ("GPU-93a5b1f0-7d5c-9b1e-f7a4-5c0c3b8a6f22", ["0"]),
        ("GPU-93a5", ["0"]),
        # As in CUDA, what follows an entry that is not there does not count.
        ("0,7,1", ["0"]),
    ],
)
def test_in_a_confined_process_addresses_are_places_in_what_it_sees(tmp_path, visible, expected):
    found = addresses(discover(tmp_path, TWO_GPUS, CUDA_VISIBLE_DEVICES=visible))
    assert found == expected


def test_an_instance_can_be_what_a_process_is_confined_to(tmp_path):
    visible = "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb,MIG-c6d4"
    assert addresses(discover(tmp_path, ONE_IS_CUT, CUDA_VISIBLE_DEVICES=visible)) == ["0", "1"]


@pytest.mark.parametrize(
    ("listing", "exit_code", "environment", "sentence"),
    [
        (None, 0, {}, "found no nvidia-smi on the PATH"),
        (NO_DRIVER + "\n", 9, {}, "nvidia-smi failed, and said: NVIDIA-SMI has failed because"),
        ("", 0, {}, "found no GPU that a process here could use: nvidia-smi -L lists 0;"),
        ("No devices found.\n", 0, {}, "nvidia-smi -L lists 0;"),
        (TWO_GPUS, 0, {"CUDA_VISIBLE_DEVICES": ""}, "lists 2 and CUDA_VISIBLE_DEVICES is '';"),
        (TWO_GPUS, 0, {"CUDA_VISIBLE_DEVICES": "-1"}, "lists 2 and CUDA_VISIBLE_DEVICES is '-1';"),
        (TWO_GPUS, 0, {"CUDA_VISIBLE_DEVICES": "2"}, "lists 2 and CUDA_VISIBLE_DEVICES is '2';"),
        (TWO_GPUS, 0, {"CUDA_VISIBLE_DEVICES": "GPU-"}, "CUDA_VISIBLE_DEVICES is 'GPU-';"),
    ],
)
def test_where_there_is_none_a_sentence_says_why(
    tmp_path, listing, exit_code, environment, sentence
):
    done = discover(tmp_path, listing, exit_code, **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("discover_gpus.sh: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
