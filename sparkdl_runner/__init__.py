"""Distributed deep learning on Spark: HorovodRunner, and what it stands on.

Importing this package imports neither torch, horovod, pyspark nor mlflow; each name below is
loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.version import __version__ as __version__

if TYPE_CHECKING:
    from sparkdl_runner.errors import LaunchError as LaunchError
    from sparkdl_runner.errors import NotPicklableError as NotPicklableError
    from sparkdl_runner.errors import RanksApartError as RanksApartError
    from sparkdl_runner.errors import RunCancelledError as RunCancelledError
    from sparkdl_runner.errors import RunnerError as RunnerError
    from sparkdl_runner.errors import ScriptExitedError as ScriptExitedError
    from sparkdl_runner.errors import WorkerDiedError as WorkerDiedError
    from sparkdl_runner.errors import WorkerError as WorkerError
    from sparkdl_runner.errors import WorkerFailedError as WorkerFailedError
    from sparkdl_runner.errors import WorkerHungError as WorkerHungError
    from sparkdl_runner.horovod_runner import HorovodRunner as HorovodRunner
    from sparkdl_runner.launch.config import RunConfig as RunConfig
    from sparkdl_runner.launch.driver.calls.spares import end_spare_workers as end_spare_workers
    from sparkdl_runner.launch.worker.driver_log import log_to_driver as log_to_driver
    from sparkdl_runner.rank.world import World as World
    from sparkdl_runner.rank.world import current_world as current_world
    from sparkdl_runner.runner import DistributedRunner as DistributedRunner
    from sparkdl_runner.torch_distributor import TorchDistributor as TorchDistributor
    from sparkdl_runner.training.loop.trainer import Trainer as Trainer
    from sparkdl_runner.training.memory import plan_memory as plan_memory
    from sparkdl_runner.training.replicas import verify_replicas as verify_replicas

_HOMES = {
    "DistributedRunner": "runner",
    "HorovodRunner": "horovod_runner",
    "LaunchError": "errors",
    "NotPicklableError": "errors",
    "RanksApartError": "errors",
    "RunCancelledError": "errors",
    "RunConfig": "launch.config",
    "RunnerError": "errors",
    "ScriptExitedError": "errors",
    "WorkerDiedError": "errors",
    "WorkerError": "errors",
    "WorkerFailedError": "errors",
    "WorkerHungError": "errors",
    "TorchDistributor": "torch_distributor",
    "Trainer": "training.loop.trainer",
    "World": "rank.world",
    "current_world": "rank.world",
    "end_spare_workers": "launch.driver.calls.spares",
    "log_to_driver": "launch.worker.driver_log",
    "plan_memory": "training.memory",
    "verify_replicas": "training.replicas",
}

# Without names that import torch: ``import *`` must not load it.
__all__ = sorted([*(_HOMES.keys() - {"Trainer", "plan_memory", "verify_replicas"}), "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
