"""Ray Train for benchmarks beside it, on a cluster of Ray's own on this host."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def start_ray(workers: int) -> None:
    """Starts it, unless this process has; it ends with this process.

    Args:
        workers: How many processes of a training it has room for.

    Raises:
        ImportError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    # Ray's older trainers take a processor for themselves.
    ray.init(
        num_cpus=workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        ignore_reinit_error=True,
    )


def allreduce_under_ray(workers: int) -> Callable[[], float]:
    """Starts a cluster, and makes a launcher of one allreduce.

    Raises:
        ImportError: Ray is not installed.
    """
    start_ray(workers)
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "sum"

    def launch() -> float:
        file.unlink(missing_ok=True)
        trainer = TorchTrainer(
            _allreduce(str(file)),
            scaling_config=ScalingConfig(num_workers=workers),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(storage_path=folder.name),
        )
        trainer.fit()
        return float(file.read_text())

    return launch


def _allreduce(file: str) -> Callable[[], None]:
    def allreduce() -> None:
        import ray.train
        import torch
        import torch.distributed as dist

        ones = torch.ones(1)
        dist.all_reduce(ones)
        if dist.get_rank() == 0:
            # Only with a checkpoint would Ray carry it to the driver.
            Path(file).write_text(str(ones.item()))
        ray.train.report({})

    return allreduce
