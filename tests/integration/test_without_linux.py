"""What a laptop with macOS runs, without what Linux alone has.

Every program here, and its ranks, find ``sitecustomize`` of ``tests/without_linux`` on the search
path. That shows what the code asks for, and not what another kernel answers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from processes import still_running, wait_until_gone

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

ABSENT = str(Path(__file__).parents[1] / "without_linux")


def environment(*before: str) -> dict[str, str]:
    """The tests' own without Java, with the search path of these tests behind some folders."""
    path = os.pathsep.join([*before, ABSENT, *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "JAVA_HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}


def run(folder: Path, code: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, and shows what it printed if it fails."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code))
    return python(folder, [str(script)], *before)


def python(folder: Path, arguments: list[str], *before: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(*before),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done


TRAIN = """
    import json
    import os
    import mlflow
    from sparkdl_runner import DistributedRunner, RunConfig
    from sparkdl_runner.data import make_spark_converter

    def train(converter):
        import torch
        import torch.distributed as dist
        from sparkdl_runner.checkpoint import CheckpointManager

        dist.init_process_group("gloo")
        network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        rows = step = 0
        with (
            converter.make_torch_dataloader(batch_size=8, num_epochs=2) as loader,
            CheckpointManager("checkpoints") as checkpoints,
        ):
            begun = checkpoints.restore(network.module, optimizer)
            for step, batch in enumerate(loader, 1):
                loss = (network(batch["vector"]) - batch["label"][:, None]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rows += len(batch["label"])
            checkpoints.save(step, network.module, optimizer)
        mlflow.log_metric("rows", rows)
        assert not hasattr(os, "sched_getaffinity") and not os.path.exists("/proc")
        found = torch.tensor([rows])
        dist.all_reduce(found)
        dist.destroy_process_group()
        return {"step": step, "rows": int(found), "begun": begun and begun.step}

    if __name__ == "__main__":
        config = RunConfig(tracking=True)
        converter = make_spark_converter("file://FOLDER/table")
        for num_proc in (-2, -1):
            runner = DistributedRunner(num_proc=num_proc, backend="torch", run_config=config)
            print("FOUND", json.dumps(runner.run(train, converter=converter)))
        run, _ = mlflow.search_runs(output_format="list")
        print("PAGE", run.info.status, run.data.metrics["rows"], run.data.tags["mlflow.runName"])
"""


def test_a_training_on_parquet_with_checkpoints_and_its_page(
    tmp_path: Path, new_store: Any
) -> None:
    new_store(tmp_path)
    (tmp_path / "table").mkdir()
    vectors = np.random.default_rng(0).random((64, 4), dtype=np.float32)
    table = pa.table(
        {"vector": pa.array(list(vectors), pa.list_(pa.float32())), "label": vectors.sum(1)}
    )
    pq.write_table(table, tmp_path / "table" / "part-0.parquet", row_group_size=16)
    done = run(tmp_path, TRAIN.replace("FOLDER", str(tmp_path)))
    assert done.returncode == 0
    first, second = (
        json.loads(line.removeprefix("FOUND "))
        for line in done.stdout.splitlines()
        if line.startswith("FOUND")
    )
    assert first == {"step": 8, "rows": 128, "begun": None}
    assert second == {"step": 16, "rows": 128, "begun": 8}
    assert "PAGE FINISHED 128.0 train-2" in done.stdout
    assert done.stderr.count("this system has no /proc: ") == 1


FAIL = """
    import os, signal, sys, time
    from sparkdl_runner import DistributedRunner, RunConfig, WorkerError

    def fail(how):
        from sparkdl_runner import current_world

        if current_world().rank == 1:
            time.sleep(0.2)
            if how == "raise":
                raise ValueError("the data of rank 1 is bad")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        while True:
            time.sleep(0.1)

    def wait_in_one_place(how):
        time.sleep(600)

    if __name__ == "__main__":
        for how, what in (
            ("raise", fail), ("kill", fail), ("stop", fail), ("hang", wait_in_one_place)
        ):
            config = RunConfig(hang_timeout_seconds=4)
            try:
                DistributedRunner(num_proc=-2, backend="horovod", run_config=config).run(what, how)
            except WorkerError as error:
                print(f"{how}: {type(error).__name__}: {error}")
                print("END", how)
"""


def test_ranks_that_raise_are_killed_are_stopped_or_hang_are_told(
    tmp_path: Path, no_torch: str
) -> None:
    done = run(tmp_path, FAIL, no_torch)
    assert done.returncode == 0
    raised, killed, stopped, hung, _ = done.stdout.split("END ")
    assert "WorkerFailedError" in raised
    assert "the data of rank 1 is bad" in raised
    assert "WorkerDiedError" in killed
    assert "SIGKILL" in killed
    assert "WorkerHungError" in stopped
    assert "rank 1" in stopped
    assert "WorkerHungError" in hung
    assert "in wait_in_one_place" in hung


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_driver_leaves_no_process(
    tmp_path: Path, number: int, no_torch: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "from sparkdl_runner import HorovodRunner\n"
        "def main():\n"
        "    import subprocess, time\n"
        "    subprocess.Popen(['sleep', '4713'], start_new_session=True)\n"
        "    print('started')\n"
        "    time.sleep(600)\n"
        "HorovodRunner(np=-2).run(main)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(no_torch),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    assert {driver.stdout.readline()[-9:-1] for _ in range(2)} == {" started"}
    children = psutil.Process(driver.pid).children(recursive=True)
    assert len(children) >= 4
    driver.send_signal(number)
    driver.wait(300)
    driver.stdout.close()
    assert not still_running(children)
    assert wait_until_gone("4713")


def test_a_script_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('sum', total.item(), *sys.argv[1:])\n"
        "dist.destroy_process_group()\n"
    )
    done = python(
        tmp_path, ["-m", "sparkdl_runner", "run", "train.py", "--np", "-2", "--", "--epochs", "3"]
    )
    assert done.returncode == 0
    assert sorted(line for line in done.stdout.splitlines() if "sum" in line) == [
        "[rank 0] sum 2.0 --epochs 3",
        "[rank 1] sum 2.0 --epochs 3",
    ]


def test_the_doctor_looks_at_this_host(tmp_path: Path) -> None:
    done = python(tmp_path, ["-m", "sparkdl_runner", "doctor", "--backend", "torch", "--json"])
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert [check for check, one in found.items() if one["status"] == "problem"] == ["java"]
    assert {found[check]["status"] for check in ("torch", "python", "disk", "open_files")} == {"ok"}
    assert "/proc/meminfo" in found["memory"]["found"]
