"""``TorchDistributor``, with the arguments and the meaning of Spark's class of this name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.added_variables import with_variables
from sparkdl_runner.launch.driver.calls.checks import check_config, check_count
from sparkdl_runner.launch.driver.local_gpus import visible_gpus
from sparkdl_runner.launch.driver.spark.context import (
    is_spark_connect,
    require_spark_context,
    running_context,
    settings_of,
)
from sparkdl_runner.runner import DistributedRunner

_GPUS_OF_A_TASK = "spark.task.resource.gpu.amount"
_GPUS_OF_AN_EXECUTOR = "spark.executor.resource.gpu.amount"


class TorchDistributor:
    """Runs a function or a script that uses ``torch.distributed``, as Spark's class does.

    Args:
        num_processes: How many ranks.
        local_mode: Whether they are processes of this machine, which need neither Spark nor Java;
            else they run in the tasks of one stage: a rank for each GPU of a task.
        use_gpu: Whether each rank has a GPU. On this machine the ranks share the first
            ``num_processes`` GPUs that are visible, and ``LOCAL_RANK`` says which is a rank's own.
            On Spark each rank sees the GPUs of its task.
        _ssl_conf: The Spark setting that accepts gradients in the clear where Spark's own settings
            ask for encryption, as ``RunConfig(allow_unencrypted=True)`` does.
        run_config: All further settings. ``node_view`` and the GPUs that ranks see are set here.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``num_processes`` is less than 1.
        LaunchError: ``use_gpu`` is True, and there are too few GPUs on this machine, or Spark's
            settings give a task none.

    Example:
        >>> TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, 1e-3)
    """

    def __init__(
        self,
        num_processes: int = 1,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = "pytorch.spark.distributor.ignoreSsl",
        *,
        run_config: RunConfig | None = None,
    ) -> None:
        check_count("num_processes", num_processes)
        check_config(run_config)
        if num_processes < 1:
            raise ValueError(
                f"num_processes is {num_processes}; it must be a positive number of ranks."
            )
        self.num_processes, self.local_mode, self.use_gpu = num_processes, local_mode, use_gpu
        self.num_tasks = num_processes
        """As Spark's: how many tasks run the ranks."""
        view = "host" if local_mode else "task"
        config, variables = replace(run_config or RunConfig(), node_view=view), {}
        if use_gpu and local_mode:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(_first_gpus(num_processes))
        elif use_gpu:
            self.num_tasks = math.ceil(num_processes / _gpus_of_a_task())
        elif not local_mode:
            variables["CUDA_VISIBLE_DEVICES"] = ""
            config = replace(config, ranks_per_task=config.ranks_per_task or 1)
        if not local_mode and _setting(_ssl_conf).lower() == "true":
            config = replace(config, allow_unencrypted=True)
        self._runner = DistributedRunner(
            num_proc=-num_processes if local_mode else num_processes,
            run_config=with_variables(config, variables, "TorchDistributor"),
        )

    @property
    def input_params(self) -> dict[str, Any]:
        """As Spark's: the arguments, and the number of tasks."""
        names = ("num_processes", "local_mode", "use_gpu", "num_tasks")
        return {name: getattr(self, name) for name in names}

    @property
    def mlflow_run_id(self) -> str | None:
        """The MLflow run of the last call of ``run``; None if it had none."""
        return self._runner.mlflow_run_id

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Runs a function or a script in every rank, and waits for all of them.

        Args:
            train_object: The function; or the path of a script, which
                ``DistributedRunner.run_script`` brings to the ranks.
            *args: The function's arguments by position; or the script's, as texts.
            **kwargs: The function's arguments by name.

        Returns:
            The function's value in rank 0. A script has none: None.

        Raises:
            ValueError: A script is given arguments by name.
            Exception: What ``DistributedRunner.run`` and ``run_script`` raise.
        """
        if not isinstance(train_object, str):
            return self._runner.run(train_object, *args, **kwargs)
        if kwargs:
            raise ValueError(
                f"{train_object} is a script and was given {', '.join(kwargs)} by name: give its "
                "arguments as on the command line, such as '--learning-rate=1e-3'."
            )
        self._runner.run_script(train_object, [str(arg) for arg in args])
        return None


def _first_gpus(count: int) -> list[str]:
    """The first GPUs of this machine; those that Spark gives its driver, where it gives any."""
    visible = visible_gpus()
    context = running_context()
    if context is not None and "gpu" in (given := context.resources):
        addresses = given["gpu"].addresses
        # Spark counts what CUDA_VISIBLE_DEVICES shows.
        positions = [int(address) for address in addresses if address.isdigit()]
        shown = len(positions) == len(addresses) and max(positions, default=0) < len(visible)
        visible = [visible[at] for at in positions] if shown else list(addresses)
    if count > len(visible):
        found = f"{len(visible)} GPU(s)" if visible else "no GPU"
        raise LaunchError(
            f"use_gpu is True, {count} rank(s) need a GPU each, and the driver's machine shows "
            f"{found} (CUDA_VISIBLE_DEVICES, spark.driver.resource.gpu.amount): ask for at most "
            "that many ranks, or use_gpu=False."
        )
    return visible[:count]


def _gpus_of_a_task() -> int:
    """How many GPUs the task has that runs some ranks: one, where the launcher asks for them."""
    amount = float(_setting(_GPUS_OF_A_TASK) or 0)
    # With GPUs of executors, the launcher asks for one GPU a task by itself.
    if amount == 0 and not float(_setting(_GPUS_OF_AN_EXECUTOR) or 0):
        raise LaunchError(
            f"use_gpu is True, and {_GPUS_OF_A_TASK} is unset, as {_GPUS_OF_AN_EXECUTOR} is, so "
            "ranks would get no GPU: set both to 1 or more where the cluster has GPUs, or use "
            "use_gpu=False."
        )
    return max(1, int(amount))


def _setting(name: str) -> str:
    """A setting of the running Spark application, or of its Connect server; empty if unset."""
    if is_spark_connect():
        from sparkdl_runner.launch.driver.connect.session import require_session

        return require_session().conf.get(name, "") or ""
    context = require_spark_context()
    # Imported late: ranks of this machine need no Spark.
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    found = None if session is None else session.conf.get(name, None)
    return found or settings_of(context).get(name) or ""
