from __future__ import annotations

import pytest

from sparkdl_runner.launch.driver import local_gpus


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        ("2,GPU-b", 4, ["2", "GPU-b", "2"]),
        ("", 4, ["", "", ""]),
        (None, 2, ["0", "1", "0"]),
        (None, 0, ["", "", ""]),
    ],
)
def test_a_rank_that_is_a_node_sees_one_gpu(monkeypatch, tmp_path, visible, devices, expected):
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(devices))]:
        (tmp_path / name).touch()
    monkeypatch.setattr(local_gpus, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [local_gpus.gpu_of(rank) for rank in range(3)] == expected
