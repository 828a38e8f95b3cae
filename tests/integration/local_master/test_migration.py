"""Programs made for other launchers, run by those and then here: docs/migration.md, by lines."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sparkdl_runner
from sparkdl_runner import DistributedRunner, HorovodRunner, RunConfig

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

NOTEBOOK = """
import os
import sys

def train_with_horovod(learning_rate, steps=1):
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(hvd.rank() + step))).square().mean().backward()
        optimizer.step()
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
    return place, os.environ["GREETING"], sys.executable, model.weight.tolist()

def train_with_torch(learning_rate, *, names):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(dist.get_rank() + step))).square().mean().backward()
        optimizer.step()
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, {name: os.environ[name] for name in names})
    dist.destroy_process_group()
    return places, model.module.weight.tolist()
"""
SCRIPT = """
import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
seen = {name: os.environ[name] for name in NAMES}
seen["places"] = [__name__, __file__, sys.path[0]]
seen["argv"] = sys.argv[1:-1]
seen["total"] = total.item()
with open(f"{sys.argv[-1]}-{dist.get_rank()}.json", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
"""
COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


@pytest.fixture
def notebook() -> dict[str, Any]:
    """The functions of a notebook. They are pickled by value."""
    exec(NOTEBOOK, names := {"__name__": "__main__"})
    return names


@pytest.fixture
def same_signals() -> Iterator[None]:
    """horovod.spark.run leaves handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("spark", "same_signals")
def test_horovod_spark_run(notebook: dict[str, Any]) -> None:
    import horovod.spark

    from sparkdl_runner.horovod import spark as drop_in

    train, greeting = notebook["train_with_horovod"], {"GREETING": "hello"}
    before, same = (
        run(
            train,
            args=(0.1,),
            kwargs={"steps": 3},
            num_proc=2,
            start_timeout=600,
            use_gloo=True,
            env={**os.environ, **greeting},
            stdout=io.StringIO(),
            stderr=io.StringIO(),
            verbose=0,
            nics={"lo"},
            prefix_output_with_timestamp=True,
            executable=sys.executable,
        )
        for run in (horovod.spark.run, drop_in.run)
    )
    assert same == before
    config = RunConfig(environment=greeting)
    runner = DistributedRunner(num_proc=2, backend="horovod", run_config=config)
    assert runner.gather(train, 0.1, steps=3) == before
    after = HorovodRunner(np=2, run_config=config).run(train, learning_rate=0.1, steps=3)
    assert after == before[0]


@pytest.mark.usefixtures("spark")
def test_an_elastic_run_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    """Only the import was changed: nobody says where commits are kept."""
    from sparkdl_runner import horovod

    def train(died: str) -> list[int]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        model = torch.nn.Linear(1, 1)

        @hvd.elastic.run  # type: ignore[misc]
        def loop(state: Any) -> list[int]:
            while state.step < 4:
                if state.step == 2 and hvd.rank() == 1 and not os.path.exists(died):
                    Path(died).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                hvd.allreduce(torch.ones(1), name=f"step-{state.step}")
                state.step += 1
                state.commits.append(os.environ["SPARKDL_RUNNER_ELASTIC_STATE_URL"])
                state.commit()
            return state.commits

        print("begins", file=sys.stderr)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return loop(hvd.elastic.TorchState(model, optimizer, step=0, commits=[]))

    lines, quick = io.StringIO(), RunConfig(restart_backoff_seconds=0)
    options = {"num_proc": 2, "reset_limit": 1, "stderr": lines, "run_config": quick}
    found = horovod.spark.run_elastic(train, args=(str(tmp_path / "died"),), **options)
    assert len(found[0]) == 4
    assert found == [[found[0][0]] * 4] * 2
    assert not Path(found[0][0].removeprefix("file://")).exists()
    assert lines.getvalue().count("<stderr>:begins\n") == 4


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_local", [False, True], ids=["on-spark", "on-the-driver"])
def test_torch_distributor(notebook: dict[str, Any], is_local: bool) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    train = notebook["train_with_torch"]
    # On the driver, TorchDistributor leaves NODE_RANK to torchrun, which does not set it.
    names = COUNTS if is_local else (*COUNTS, "NODE_RANK")
    distributor = TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False)
    before = distributor.run(train, 0.1, names=names)
    drop_in = sparkdl_runner.TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False)
    assert drop_in.run(train, 0.1, names=names) == before


def test_ai_runtime(capfd: pytest.CaptureFixture[str]) -> None:
    """What AI Runtime's page begins with, on the CPU, twice at once."""
    from sparkdl_runner.air import distributed
    from sparkdl_runner.air.runtime import get_global_rank, get_world_size

    @distributed(num_accelerators=2, accelerator_type="GPU_8xH100", timeout=300)
    def train(weight: float) -> tuple[int, int, float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor(weight * (1 + get_global_rank()))
        dist.all_reduce(total)
        dist.destroy_process_group()
        return get_global_rank(), get_world_size(), total.item()

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(train.distributed, (1.0, 10.0)))
    assert found == [[(0, 2, 3.0), (1, 2, 3.0)], [(0, 2, 30.0), (1, 2, 30.0)]]
    assert "2 ranks run on its CPU, and GPU_8xH100 has no effect" in capfd.readouterr().err


def test_the_timeout_of_ai_runtime_ends_all_ranks(tmp_path: Path) -> None:
    from sparkdl_runner.air import distributed

    def wait(folder: str) -> None:
        (Path(folder) / str(os.getpid())).touch()
        signal.pause()

    with pytest.raises(TimeoutError, match="wait was ended after timeout=5 seconds"):
        distributed(2, timeout=5)(wait).distributed(str(tmp_path))
    assert not [pid.name for pid in tmp_path.iterdir() if Path("/proc", pid.name).exists()]


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"NAMES = {COUNTS}\n{SCRIPT}")
    torchrun = f"{sysconfig.get_path('scripts')}/torchrun"
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "0"]
    command = [sys.executable, torchrun, *options, str(script), "--epochs", "3"]
    subprocess.run([*command, str(tmp_path / "before")], check=True)
    arguments = ["--epochs", "3", str(tmp_path / "after")]
    DistributedRunner(num_proc=-2).run_script(str(script), arguments)
    for rank in (0, 1):
        before, after = (
            json.loads((tmp_path / f"{when}-{rank}.json").read_text())
            for when in ("before", "after")
        )
        assert after == before
        assert before["total"] == 2.0
