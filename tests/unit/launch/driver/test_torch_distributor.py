"""What ``TorchDistributor`` makes of its arguments, before any rank starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner import LaunchError, RunConfig, TorchDistributor, torch_distributor

TASKS = "spark.task.resource.gpu.amount"
EXECUTORS = "spark.executor.resource.gpu.amount"


@pytest.fixture
def settings(monkeypatch):
    """Those of a Spark application that is not there."""
    found: dict[str, str] = {}
    monkeypatch.setattr(torch_distributor, "_setting", lambda name: found.get(name, ""))
    monkeypatch.setattr(torch_distributor, "running_context", lambda: None)
    return found


def config_of(distributor: TorchDistributor) -> RunConfig:
    return distributor._runner.run_config


def test_arguments_are_those_of_sparks_class(settings):
    distributor = TorchDistributor(3, False, False)
    assert distributor.input_params == {
        "num_processes": 3,
        "local_mode": False,
        "use_gpu": False,
        "num_tasks": 3,
    }
    assert distributor._runner.num_proc == 3
    assert TorchDistributor(3, True, False)._runner.num_proc == -3
    with pytest.raises(ValueError, match="num_processes is 0; it must be a positive"):
        TorchDistributor(0, False, False)


def test_a_task_is_a_node_and_a_machine_is_a_host(settings):
    assert config_of(TorchDistributor(2, False, False)).node_view == "task"
    assert config_of(TorchDistributor(2, True, False)).node_view == "host"


def test_the_first_gpus_of_this_machine_are_shown_to_all_ranks(settings, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-b,7")
    assert config_of(TorchDistributor(2, True, True)).environment == {
        "CUDA_VISIBLE_DEVICES": "5,GPU-b"
    }
    sentence = r"4 rank\(s\) need a GPU each, and the driver's machine shows 3 GPU\(s\)"
    with pytest.raises(LaunchError, match=sentence):
        TorchDistributor(4, True, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(LaunchError, match="the driver's machine shows no GPU"):
        TorchDistributor(1)


def test_gpus_that_spark_gives_its_driver_come_first(settings, monkeypatch):
    context = SimpleNamespace(resources={"gpu": SimpleNamespace(addresses=["2", "0"])})
    monkeypatch.setattr(torch_distributor, "running_context", lambda: context)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert config_of(TorchDistributor(2)).environment == {"CUDA_VISIBLE_DEVICES": "7,5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert config_of(TorchDistributor(2)).environment == {"CUDA_VISIBLE_DEVICES": "2,0"}
    with pytest.raises(LaunchError, match=r"shows 2 GPU\(s\)"):
        TorchDistributor(3)


def test_gpus_of_a_cluster_are_those_of_its_settings(settings):
    with pytest.raises(LaunchError, match=f"{TASKS} is unset, as {EXECUTORS} is"):
        TorchDistributor(2, False, True)
    settings[EXECUTORS] = "4"
    assert config_of(TorchDistributor(2, False, True)).environment is None
    settings[TASKS] = "1"
    TorchDistributor(2, False, True)
    assert TorchDistributor(8, False, True).num_tasks == 8
    settings[TASKS] = "4"
    assert TorchDistributor(8, False, True).num_tasks == 2
    assert TorchDistributor(8, False, False).num_tasks == 8
    assert config_of(TorchDistributor(8, False, False)).ranks_per_task == 1


def test_ranks_on_spark_see_no_gpu_that_was_not_asked_for(settings):
    mine = RunConfig(environment={"A": "1"})
    distributor = TorchDistributor(2, False, False, run_config=mine)
    assert config_of(distributor).environment == {"A": "1", "CUDA_VISIBLE_DEVICES": ""}
    with pytest.raises(ValueError, match="TorchDistributor sets variables besides"):
        TorchDistributor(2, False, False, run_config=RunConfig(environment=["MY_*"]))


def test_sparks_setting_accepts_gradients_in_the_clear(settings):
    assert not config_of(TorchDistributor(2, False, False)).allow_unencrypted
    settings["pytorch.spark.distributor.ignoreSsl"] = "true"
    assert config_of(TorchDistributor(2, False, False)).allow_unencrypted


def test_a_script_takes_no_arguments_by_name():
    with pytest.raises(ValueError, match=r"train\.py is a script and was given rate by name"):
        TorchDistributor(1, True, False).run("train.py", rate=1)
