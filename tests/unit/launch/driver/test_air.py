"""What AI Runtime's ``distributed`` does here, before any rank starts."""

from __future__ import annotations

import enum
import ipaddress
import threading

import pytest

from sparkdl_runner import LaunchError, RunConfig, RunnerError
from sparkdl_runner.air import decorator, distributed, runtime
from sparkdl_runner.air.compute import GPUType


class Runner:
    """Stands in for DistributedRunner, and keeps what it was asked for."""

    made: list[Runner]
    at_once: threading.Barrier | None = None

    def __init__(self, *, num_proc, run_config):
        self.num_proc, self.run_config = num_proc, run_config
        Runner.made.append(self)

    def gather(self, func, *args, **kwargs):
        if Runner.at_once is not None:
            Runner.at_once.wait(10)
        return [func(*args, **kwargs)] * -self.num_proc


@pytest.fixture
def runners(monkeypatch):
    monkeypatch.setattr(decorator, "DistributedRunner", Runner)
    monkeypatch.setattr(Runner, "made", [], raising=False)
    return Runner.made


def double(x):
    return 2 * x


def test_each_ranks_value_is_returned_and_the_function_stays(runners, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    train = distributed(num_accelerators=2)(double)
    assert train.distributed(x=3) == [6, 6]
    assert train.func is double
    assert train.__name__ == "double"
    assert runners[0].run_config.environment == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert distributed()(double).distributed(1) == [2, 2, 2]
    with pytest.raises(TypeError, match="missing a required argument"):
        train.distributed()


def test_a_decorated_function_is_not_called_directly():
    sentence = r"double is decorated by @distributed and was called directly: call double\.distr"
    with pytest.raises(RunnerError, match=sentence):
        distributed()(double)(1)


def test_gpus_elsewhere_are_refused():
    with pytest.raises(LaunchError, match=r"remote is True, .*\.gather\(double\.func, …\)"):
        distributed(gpus=8, gpu_type="H100", remote=True)(double)
    with pytest.raises(LaunchError, match="remote is True"):
        distributed()(double).with_overrides(remote=True)


def test_more_ranks_than_gpus_are_refused(runners, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(LaunchError, match=r"asks for 3 accelerators, .* shows 2 GPU\(s\)"):
        distributed(3)(double).distributed(1)
    assert not runners


def test_without_a_gpu_ranks_run_on_the_cpu_and_a_line_says_so(runners, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert distributed(gpus=3, gpu_type="H100")(double).distributed(1) == [2, 2, 2]
    assert (
        "double: this machine shows no GPU: 3 ranks run on its CPU, and H100 has no effect."
        in capsys.readouterr().err
    )
    assert distributed()(double).distributed(1) == [2]
    assert "1 rank runs on its CPU (num_accelerators=2 starts two)." in capsys.readouterr().err
    assert runners[0].run_config.environment is None


@pytest.mark.parametrize(
    ("named", "there", "is_said"),
    [
        ("GPU_8xH100", "NVIDIA H100 80GB HBM3", False),
        (GPUType.A10, "NVIDIA A10G", False),
        ("a10", "NVIDIA A100-SXM4-40GB", True),
        ("GPU_1xH100", "NVIDIA H200", True),
        ("GPU_1xH100", "", False),
    ],
)
def test_another_gpu_than_the_one_that_is_named_is_told(
    runners, monkeypatch, capsys, tmp_path, named, there, is_said
):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ '{there}' ] && echo '{there}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    distributed(1, named)(double).distributed(1)
    line = f"and this machine has {there}: the ranks take what is there."
    assert (line in capsys.readouterr().err) is is_said


def test_two_calls_at_once_have_gpus_of_their_own(runners, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(Runner, "at_once", threading.Barrier(2))
    train = distributed(2)(double)
    threads = [threading.Thread(target=train.distributed, args=(1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = {runner.run_config.environment["CUDA_VISIBLE_DEVICES"] for runner in runners}
    assert shown == {"0,1", "2,3"}


def test_a_call_waits_for_gpus_that_another_has(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpus, waits = decorator._Gpus(), threading.Event()
    monkeypatch.setattr(decorator, "tell", lambda text: waits.set())
    order = []

    def second():
        with gpus.taken(2):
            order.append("second")

    with gpus.taken(1):
        other = threading.Thread(target=second)
        other.start()
        assert waits.wait(10)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_overrides_make_another_function(runners, monkeypatch):
    class Kind(enum.Enum):
        H100 = "GPU_8xH100"

    train = distributed(2, Kind.H100, timeout=60)(double)
    other = train.with_overrides(gpus=4, timeout=None, run_config=RunConfig(max_restarts=1))
    assert (train.num_accelerators, other.num_accelerators) == (2, 4)
    assert train.accelerator_type == other.accelerator_type == "GPU_8xH100"
    assert train.with_overrides(3)._settings.timeout == 60
    assert other._settings.timeout is None
    assert distributed()(double)._settings.timeout is None, "no limit unless one is asked for"


def test_arguments_that_mean_nothing_are_refused():
    with pytest.raises(TypeError, match=r"needs parentheses.*: @distributed\(\)"):
        distributed(double)
    for count in (0, -2, True, 2.0):
        with pytest.raises(ValueError, match=r"num_accelerators is .*; it must be a positive"):
            distributed(count)
    with pytest.raises(ValueError, match="leave gpus out"):
        distributed(2, gpus=2)
    for timeout in (0, -1, "1h", True):
        with pytest.raises(ValueError, match=r"timeout is .*; it must be a positive"):
            distributed(timeout=timeout)
    with pytest.raises(TypeError, match="must be a RunConfig"):
        distributed(run_config={})


def test_runtime_says_where_a_rank_is(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    asked = (
        runtime.get_global_rank,
        runtime.get_world_size,
        runtime.get_local_rank,
        runtime.get_local_world_size,
        runtime.get_node_rank,
    )
    assert [ask() for ask in asked] == [0, 1, 0, 1, 0]
    assert runtime.get_replica_rank() == 0
    assert ipaddress.ip_address(runtime.get_node_ip())
    variables = zip(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"), "58143", strict=True
    )
    for name, value in variables:
        monkeypatch.setenv(name, value)
    assert [ask() for ask in asked] == [5, 8, 1, 4, 3]
