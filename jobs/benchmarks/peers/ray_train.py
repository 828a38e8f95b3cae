"""Ray Train for benchmarks beside it, on a cluster of Ray's own on this host."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.environment import peers_python
from benchmarks.ranks.processes import module_command, module_environment


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
    """Starts a cluster, in the peers' environment, and makes a launcher of one allreduce there.

    Raises:
        FileNotFoundError: That environment is not made.
        RuntimeError: Ray did not start.
    """
    process = subprocess.Popen(
        module_command("peers.ray_train", str(workers), python=peers_python()),
        env=module_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def answer() -> float:
        line = process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"Ray's process ended with exit code {process.wait()}")
        return float(line)

    def launch() -> float:
        print("go", file=process.stdin, flush=True)
        return answer()

    answer()
    return launch


def _serve(workers: int) -> None:
    """Starts a training for each line of standard input, and answers by its sum."""
    # What Ray prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start_ray(workers)
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sum"
        print(0, file=answers, flush=True)
        for _ in sys.stdin:
            file.unlink(missing_ok=True)
            TorchTrainer(
                _allreduce(str(file)),
                scaling_config=ScalingConfig(num_workers=workers),
                torch_config=TorchConfig(backend="gloo"),
                run_config=RunConfig(storage_path=folder),
            ).fit()
            print(float(file.read_text()), file=answers, flush=True)


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


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
