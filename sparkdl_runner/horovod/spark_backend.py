"""``SparkBackend``: Horovod's own Spark estimators, with this package's ranks under them."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.base.renamed import renamed
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.agent.worker_environment import HOSTS_OWN
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.ingredients import ingredients
from sparkdl_runner.launch.driver.spark.context import require_spark_context
from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_profile
from sparkdl_runner.launch.driver.spark.slots import wait_for_slots
from sparkdl_runner.runner import DistributedRunner

_STREAMS = ("stdout", "stderr")
_WITHOUT_EFFECT = (
    *_STREAMS,
    *("verbose", "prefix_output_with_timestamp", "nics", "use_gloo", "use_mpi"),
)
_KNOWN = (
    "num_proc",
    "driver_log_verbosity",
    "run_config",
    "env",
    "start_timeout",
    *_WITHOUT_EFFECT,
)


class SparkBackend:
    """The ``backend=`` of ``horovod.spark.torch.TorchEstimator`` that runs its ranks here.

    It has the two methods of ``horovod.spark.common.backend.Backend``, and so takes the place of
    Horovod's own backend of this name, which starts ``horovod.spark.run``.

    Args:
        num_proc: As ``DistributedRunner`` takes it: a positive number of ranks in a barrier stage,
            a negative one of processes on this host, or 0 for as many as the cluster has slots.
        driver_log_verbosity: As in ``RunConfig``, whose value is taken if this is None.
        run_config: Everything else that has a sensible default.
        env: As Horovod's: variables for the ranks, besides those of ``RunConfig.environment``.
        start_timeout: As Horovod's: ``RunConfig.start_timeout_seconds``, if it is given.
        **of_horovod: Arguments of ``horovod.spark.run`` that are of no effect here: ``stdout``,
            ``stderr``, ``verbose``, ``prefix_output_with_timestamp``, ``nics``, ``use_gloo``,
            ``use_mpi``. A stream other than the console is told of by a warning.

    Raises:
        TypeError: ``num_proc`` is no int, ``run_config`` no RunConfig, or an argument unknown.
        ValueError: There is no such verbosity.

    Example:
        >>> backend = SparkBackend(2)
        >>> TorchEstimator(backend=backend, store=create_store(url), …).fit(df)  # doctest: +SKIP
    """

    @renamed(config="run_config")
    def __init__(
        self,
        num_proc: int = 0,
        *,
        driver_log_verbosity: str | None = None,
        run_config: RunConfig | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float | None = None,
        **of_horovod: Any,
    ) -> None:
        _check_horovods(of_horovod)
        if start_timeout is not None:
            run_config = replace(run_config or RunConfig(), start_timeout_seconds=start_timeout)
        runner = DistributedRunner(
            num_proc=num_proc,
            backend="horovod",
            driver_log_verbosity=driver_log_verbosity,
            run_config=run_config,
        )
        self._num_proc, self._run_config = num_proc, runner.run_config
        self._env = dict(env or {})
        self.mlflow_run_id: str | None = None
        """The MLflow run of the last ``fit``; None if it had none."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` in every rank; Horovod's estimators do this in ``fit``.

        Args:
            fn: The function.
            args: Its arguments by position.
            kwargs: Its arguments by name.
            env: Variables for the ranks, besides those of ``RunConfig.environment``. What each
                host has for itself (``PYTHONPATH``, ``CUDA_VISIBLE_DEVICES``) is left out.

        Returns:
            The values of all ranks, in the order of ranks.

        Raises:
            LaunchError: The estimator reads its data by petastorm, which cannot run here.
            ValueError: There are variables in ``env``, and ``RunConfig.environment`` is a list.
            Exception: What ``DistributedRunner.run`` raises.
        """
        kwargs = kwargs or {}
        _check_reader(fn)
        runner = DistributedRunner(
            num_proc=self._num_proc,
            backend="horovod",
            run_config=_with_variables(self._run_config, {**self._env, **(env or {})}),
        )
        try:
            return runner.gather(_quiet(fn), *args, **kwargs)
        finally:
            self.mlflow_run_id = runner.mlflow_run_id

    def num_processes(self) -> int:
        """How many ranks there will be; the estimator writes that many times some files for them.

        Raises:
            LaunchError: The cluster is to say how many, and has no slot in time.
        """
        if self._num_proc:
            return abs(self._num_proc)
        context = require_spark_context()
        return wait_for_slots(context, 0, self._run_config, profile=rank_profile(context))


def _check_horovods(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in _WITHOUT_EFFECT:
            raise TypeError(f"SparkBackend has no {name}{nearest(name, _KNOWN)}")
        if name in _STREAMS and value not in (None, sys.stdout, sys.stderr):
            warnings.warn(
                f"SparkBackend: {name} is {value!r:.100}, and ranks' output is shown on the "
                "driver's console; RunConfig(log_directory=…) keeps all of it in files.",
                stacklevel=4,
            )


def _with_variables(config: RunConfig, env: Mapping[str, str] | None) -> RunConfig:
    variables = {name: value for name, value in (env or {}).items() if name not in HOSTS_OWN}
    given = config.environment
    if not variables:
        return config
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(
            "RunConfig.environment is a list of patterns, and the estimator sets variables besides "
            f"({', '.join(variables)}): give environment as a dict of names and values."
        )
    return replace(config, environment={**(given or {}), **variables})


def _check_reader(fn: Callable[..., Any]) -> None:
    """Raises LaunchError if an estimator's function reads by petastorm, and that cannot run."""
    for _, value in ingredients(fn):
        if getattr(value, "__name__", "") != "PetastormDataModule":
            continue
        # Imported late: it needs pyarrow, as Horovod's estimators do.
        from sparkdl_runner.data.consumers.petastorm.engine import obstacle

        if sentence := obstacle():
            reason, _, _ = sentence.partition(": use ")
            raise LaunchError(
                f"Horovod's estimators read their data by petastorm, and {reason}: use "
                "sparkdl_runner.estimator.TorchEstimator, which needs none, or an environment with "
                "'sparkdl-runner[petastorm]'."
            )


def _quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Hides Arrow's warnings of the old interface that petastorm reads by, two dozen a rank."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")
        return fn(*args, **kwargs)

    return call
