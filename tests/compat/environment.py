"""Tries the environment that runs this: ranks here and on Spark, and data that are trained on.

With ``SPARK_REMOTE`` Spark is a server elsewhere, and all ranks are here, as on AI Runtime.
Prints a line for each part; ends with the number of parts that went wrong.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sparkdl_runner import DistributedRunner, HorovodRunner, WorkerFailedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data import SparkDatasetConverter

PACKAGES = (
    "pyspark",
    "pyspark-client",
    "pyarrow",
    "pandas",
    "numpy",
    "petastorm",
    "torch",
    "horovod",
    "mlflow",
)
ROWS, BATCH = 480, 20
STEPS = ROWS // (2 * BATCH)


def add_ranks(add: float) -> float:
    """Sums rank + ``add`` over all ranks, in two process groups one after the other."""
    import torch
    import torch.distributed as dist

    for _ in range(2):
        dist.init_process_group("gloo")
        total = torch.tensor([dist.get_rank() + add])
        dist.all_reduce(total)
        dist.destroy_process_group()
    return float(total)


def add_ranks_by_horovod(add: float) -> float:
    """The same by Horovod."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank() + add]), op=hvd.Sum)
    hvd.shutdown()
    return float(total)


def fail_on_rank_1() -> None:
    """Raises on one rank, while the other waits for it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("the learning rate is no number")
    dist.all_reduce(torch.ones(1))


def keep_contract(ranks: int) -> None:
    """A value comes back, and so does an error, with its rank and words."""
    runner = DistributedRunner(num_proc=ranks)
    assert runner.run(add_ranks, add=0.5) == 2.0
    try:
        runner.run(fail_on_rank_1)
    except WorkerFailedError as error:
        said = str(error)
    else:
        said = "nothing was raised"
    assert "Rank 1" in said, said
    assert "the learning rate is no number" in said, said


def keep_contract_by_horovod(ranks: int) -> None:
    """A value comes back from Horovod's ranks."""
    assert HorovodRunner(np=ranks).run(add_ranks_by_horovod, add=0.5) == 2.0


def make_rows(spark: SparkSession) -> DataFrame:
    """Rows of which each column can be told from ``id``; in four files."""
    return spark.range(0, ROWS, 1, 4).selectExpr(
        "id",
        "id / 4 AS quarter",
        "cast(id % 7 AS int) AS label",
        "id % 2 = 0 AS even",
        "concat('row ', id) AS name",
        "array(cast(id AS float), cast(-id AS float)) AS features",
        "timestamp_micros(id * 1000000) AS at",
    )


def train(converter: SparkDatasetConverter, url: str, first: int, last: int) -> dict[str, Any]:
    """Trains from one step to another, each time in a new process, by way of a checkpoint."""
    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager

    dist.init_process_group("gloo")
    torch.manual_seed(first)
    network = torch.nn.Linear(2, 7)
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids: list[int] = []
    with (
        converter.make_torch_dataloader(batch_size=BATCH, num_epochs=1, seed=3) as loader,
        CheckpointManager(url) as checkpoints,
    ):
        assert len(loader) == STEPS
        restored = checkpoints.restore(model, optimizer, loader)
        assert (restored.step if restored else 0) == first
        before = {name: value.tolist() for name, value in network.state_dict().items()}
        for step, batch in enumerate(loader, start=first + 1):
            ids += check_batch(batch)
            loss = torch.nn.functional.cross_entropy(
                model(batch["features"] / ROWS), batch["label"].long()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == last:
                checkpoints.save(step, model, optimizer, loader)
                break
    seen: list[Any] = [None, None]
    dist.all_gather_object(seen, ids)
    dist.destroy_process_group()
    after = {name: value.tolist() for name, value in network.state_dict().items()}
    return {"ids": seen[0] + seen[1], "before": before, "after": after}


def check_batch(batch: dict[str, Any]) -> list[int]:
    """Compares every value with what its row's ``id`` says, and returns the ids."""
    import torch

    ids = batch["id"]
    assert len(ids) == BATCH
    assert torch.equal(batch["quarter"], ids.float() / 4)
    assert torch.equal(batch["label"], (ids % 7).int())
    assert torch.equal(batch["even"], ids % 2 == 0)
    assert torch.equal(batch["features"], torch.stack([ids, -ids], 1).float())
    assert torch.equal(batch["at"], ids * 1_000_000)
    listed: list[int] = ids.tolist()
    assert batch["name"] == [f"row {number}" for number in listed]
    return listed


def keep_data(spark: SparkSession, ranks: int) -> None:
    """A DataFrame is read whole and right, half of it after a restart at a checkpoint."""
    from sparkdl_runner.data import make_spark_converter

    runner = DistributedRunner(num_proc=ranks)
    with TemporaryDirectory() as folder, make_spark_converter(make_rows(spark)) as converter:
        assert len(converter) == ROWS
        half = STEPS // 2
        one = runner.run(train, converter=converter, url=folder, first=0, last=half)
        other = runner.run(train, converter=converter, url=folder, first=half, last=STEPS)
    assert other["before"] == one["after"], "the checkpoint gave other weights"
    assert sorted(one["ids"] + other["ids"]) == list(range(ROWS))


def versions() -> str:
    found = [f"Python {python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> int:
    from pyspark.sql import SparkSession

    print(versions(), flush=True)
    builder, is_remote = SparkSession.builder, "SPARK_REMOTE" in os.environ
    if not is_remote:
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    parts: dict[str, Callable[[], None]] = {"contract, ranks here": lambda: keep_contract(-2)}
    if is_remote:
        parts["data of a server, loader and checkpoint here"] = lambda: keep_data(spark, -2)
    else:
        spark.sparkContext.setLogLevel("ERROR")
        parts["contract, ranks on Spark"] = lambda: keep_contract(2)
        parts["data, loader and checkpoint on Spark"] = lambda: keep_data(spark, 2)
    if "horovod" in versions():
        parts["Horovod, ranks here"] = lambda: keep_contract_by_horovod(-2)
        parts["Horovod, ranks on Spark"] = lambda: keep_contract_by_horovod(2)
    wrong = 0
    for name, part in parts.items():
        try:
            part()
        except Exception:
            traceback.print_exc()
            wrong += 1
            print(f"{name}: WRONG", flush=True)
        else:
            print(f"{name}: right", flush=True)
    spark.stop()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
