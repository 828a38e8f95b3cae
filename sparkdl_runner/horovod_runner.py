"""``HorovodRunner``, with the arguments and the meaning that Databricks documents."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sparkdl_runner.base.renamed import renamed
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.checks import check_config, check_count
from sparkdl_runner.launch.driver.calls.run_future import RunFuture
from sparkdl_runner.runner import DistributedRunner

T = TypeVar("T")


class HorovodRunner:
    """Runs Horovod training as a Spark job, or on the driver.

    Args:
        np: How many processes. Positive: that many tasks of one barrier stage, waiting for slots
            that are busy and failing if the cluster has too few. Negative: ``-np`` processes on
            the driver, without Spark, for trying code out; all they print is shown. 0
            (deprecated): all slots of the cluster.
        driver_log_verbosity: ``"log_callback_only"`` shows what ``log_to_driver`` and
            ``LogCallback`` send; ``"all"`` also shows all that the ranks print.
        run_config: All further settings. The argument ``driver_log_verbosity`` overrides its own.

    Raises:
        TypeError: ``np`` is no int, or ``run_config`` no ``RunConfig``.
        ValueError: ``driver_log_verbosity`` is unknown.

    Example:
        >>> hr = HorovodRunner(np=2)
        >>> hr.run(train_hvd, learning_rate=0.1)  # doctest: +SKIP
    """

    @renamed(config="run_config")
    def __init__(
        self,
        *,
        np: int,
        driver_log_verbosity: str = "log_callback_only",
        run_config: RunConfig | None = None,
    ) -> None:
        check_count("np", np)
        check_config(run_config)
        if np == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated: how many slots there are changes while "
                "executors come and go. Give the number of processes.",
                DeprecationWarning,
                stacklevel=3,
            )
        self._runner = DistributedRunner(
            num_proc=np,
            backend="horovod",
            run_config=replace(
                run_config or RunConfig(), driver_log_verbosity=driver_log_verbosity
            ),
        )

    @property
    def mlflow_run_id(self) -> str | None:
        """The MLflow run of the last call of ``run``; None if it had none."""
        return self._runner.mlflow_run_id

    def run(self, main: Callable[..., T], **kwargs: Any) -> T:
        """Runs ``main(**kwargs)`` in every process; see ``DistributedRunner.run``.

        Returns:
            What ``main`` returned in rank 0.
        """
        return self._runner.run(main, **kwargs)

    def submit(self, main: Callable[..., T], **kwargs: Any) -> RunFuture[T]:
        """Starts what ``run`` runs, and returns at once; see ``DistributedRunner.submit``."""
        return self._runner.submit(main, **kwargs)

    def run_script(
        self,
        script: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        module: bool = False,
        files: Sequence[str] = (),
    ) -> None:
        """Runs a script that calls ``hvd.init()``, as ``horovodrun -np N python script.py`` does.

        Args:
            script: See ``DistributedRunner.run_script``, as of the others.
            args: The script's arguments.
            module: Whether ``script`` is the name of a module.
            files: What travels beside the Python files.
        """
        self._runner.run_script(script, args, module=module, files=files)
