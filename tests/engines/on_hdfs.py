"""What ``test_hdfs.py`` runs on the machine of an HDFS: prints what a function returns, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from sparkdl_runner.base.filesystem import open_filesystem


def keep_files(url: str) -> dict[str, Any]:
    filesystem, path = open_filesystem(url)
    for name, content in (("a/b/c.txt", b"old"), ("beside.txt", b"new")):
        with filesystem.open_output_stream(f"{path}/{name}") as stream:
            stream.write(content)
    filesystem.move(f"{path}/beside.txt", f"{path}/a/b/c.txt")
    with filesystem.open_input_file(f"{path}/a/b/c.txt") as file:
        replaced = file.read().decode()
    selector = fs.FileSelector(path, recursive=True)
    listed = sorted(one.path for one in filesystem.get_file_info(selector))
    filesystem.delete_file(f"{path}/a/b/c.txt")
    filesystem.delete_dir(path)
    gone = fs.FileSelector(path, recursive=True, allow_not_found=True)
    return {"replaced": replaced, "listed": listed, "left": filesystem.get_file_info(gone)}


def save_and_restore(url: str) -> dict[str, Any]:
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    with CheckpointManager(url) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, model, torch.optim.SGD(model.parameters()))
    with CheckpointManager(url) as checkpoints:
        restored = checkpoints.restore(other, torch.optim.SGD(other.parameters()))
    assert restored is not None
    return {"step": restored.step, "is_equal": torch.equal(model.weight, other.weight)}


def kill_while_saving(url: str, kills: str) -> dict[str, Any]:
    """Kills a process that saves without end. Each time, the newest checkpoint must be whole."""
    damaged = 0
    for number in range(int(kills)):
        saving = subprocess.Popen(
            [sys.executable, __file__, "save_for_ever", url], stdout=subprocess.PIPE
        )
        assert saving.stdout is not None
        saving.stdout.readline()  # It has saved once.
        time.sleep(0.05 + 0.083 * number)
        saving.kill()
        saving.wait()
        damaged += not _is_whole(url)
    return {"kills": int(kills), "damaged": damaged}


def save_for_ever(url: str) -> dict[str, Any]:
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    weights = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(weights.parameters())
    with CheckpointManager(url) as checkpoints:
        restored = checkpoints.restore(weights, optimizer)
        step = restored.step if restored else 0
        while True:
            step += 1
            torch.nn.init.constant_(weights.weight, step)
            checkpoints.save(step, weights, optimizer)
            checkpoints.wait()
            print(step, flush=True)


def _is_whole(url: str) -> bool:
    import warnings

    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    weights = torch.nn.Linear(512, 512)
    with CheckpointManager(url) as checkpoints, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A save that was killed is passed over.
        restored = checkpoints.restore(weights, torch.optim.SGD(weights.parameters()))
    return restored is not None and bool((weights.weight == restored.step).all())


def convert_twice(url: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from sparkdl_runner.data import make_spark_converter, write_conversion

    spark = SparkSession.builder.master("local[1]").getOrCreate()
    sums = []
    for rows in (100, 200):
        write_conversion(spark.range(rows), url, overwrite=rows > 100)
        with make_spark_converter(url).make_torch_dataloader(
            batch_size=50, cur_shard=0, shard_count=1, num_epochs=1
        ) as loader:
            sums.append(sum(int(batch["id"].sum()) for batch in loader))
    spark.stop()
    filesystem, path = open_filesystem(url)
    found = filesystem.get_file_info(fs.FileSelector(path))
    return {"sums": sums, "folders": sum(one.type == fs.FileType.Directory for one in found)}


def work_on_demand(url: str) -> dict[str, Any]:
    """Converts, reads and saves side by side, once for each line of its input; tells each time."""
    import torch
    from pyspark.sql import SparkSession

    from sparkdl_runner.checkpoint import Checkpoint, CheckpointManager
    from sparkdl_runner.data import make_spark_converter, write_conversion

    spark = SparkSession.builder.master("local[1]").getOrCreate()
    weights = torch.nn.Linear(512, 512)
    write_conversion(spark.range(0, 1000, 1, 2), f"{url}/rows-0")
    checkpoints = CheckpointManager(f"{url}/checkpoints", keep_last=2)

    def convert(number: int) -> int:
        write_conversion(spark.range(0, 1000, 1, 2), f"{url}/rows-{number}")
        return read(number)

    def read(number: int) -> int:
        converter = make_spark_converter(f"{url}/rows-{number}")
        with converter.make_torch_dataloader(
            batch_size=50, cur_shard=0, shard_count=1, num_epochs=1, cache_type="null"
        ) as loader:
            return sum(int(batch["id"].sum()) for batch in loader)

    def save(number: int) -> int:
        checkpoints.save(number, weights, torch.optim.SGD(weights.parameters()))
        checkpoints.wait()
        return Checkpoint.load(f"{url}/checkpoints").step

    with ThreadPoolExecutor() as threads:
        for number, _ in enumerate(sys.stdin, 1):
            jobs = [threads.submit(job, number) for job in (convert, save)]
            jobs.append(threads.submit(read, 0))
            print(json.dumps([job.result() for job in jobs]), flush=True)
    checkpoints.close()
    spark.stop()
    return {}


def fail(url: str) -> dict[str, Any]:
    began = time.monotonic()
    filesystem, path = open_filesystem(url)
    try:
        filesystem.create_dir(path)
    except OSError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "seconds": 0}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
