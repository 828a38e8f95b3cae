"""Ray Train for benchmarks beside it, on a cluster of Ray's own on this host."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import peers_python
from benchmarks.ranks.killed_training import training
from benchmarks.ranks.processes import module_command, module_environment


def under_ray(
    workers: int, given: dict[str, Any] | None = None, kills: int = 0
) -> Callable[[], float]:
    """Starts a cluster, in the peers' environment, and makes a launcher of trainings there.

    Args:
        workers: How many processes a training has.
        given: What :func:`training`'s function is given. By default a training does one allreduce
            of ones, and the launcher returns its sum.
        kills: How often one may fail.

    Raises:
        FileNotFoundError: That environment is not made.
        RuntimeError: Ray did not start, or a training failed.
    """
    request = json.dumps({"workers": workers, "given": given, "kills": kills})
    process = subprocess.Popen(
        module_command("peers.ray_train", request, python=peers_python()),
        env=module_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def launch() -> float:
        print("go", file=process.stdin, flush=True)
        line = process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"Ray's process ended with exit code {process.wait()}")
        return float(line)

    launch()  # The cluster, of no training.
    return launch


def _serve(workers: int, given: dict[str, Any] | None, kills: int) -> None:
    """Starts a training for each line of standard input but the first, and answers by its sum."""
    # What Ray prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    # Ray's older trainers take a processor for themselves.
    ray.init(num_cpus=workers + 1, **quiet)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sum"
        failures = FailureConfig(max_failures=kills)
        sys.stdin.readline()
        print(0, file=answers, flush=True)
        for _ in sys.stdin:
            file.write_text("0")
            TorchTrainer(
                training(under_ray=True) if given else _allreduce(str(file)),
                train_loop_config=given,
                scaling_config=ScalingConfig(num_workers=workers),
                torch_config=TorchConfig(backend="gloo"),
                run_config=RunConfig(storage_path=folder, failure_config=failures),
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
    _serve(**json.loads(sys.argv[1]))
