"""``SparkBackend``: Horovod's own Spark estimators, with this package's ranks under them."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.base.renamed import renamed
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.horovod.output_streams import OutputStreams, with_marked_errors
from sparkdl_runner.launch.agent.worker_environment import HOSTS_OWN
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.added_variables import with_variables
from sparkdl_runner.launch.driver.calls.checks import check_config
from sparkdl_runner.launch.driver.calls.ingredients import ingredients
from sparkdl_runner.launch.driver.spark.context import require_spark_context
from sparkdl_runner.launch.driver.spark.slots import wait_for_slots
from sparkdl_runner.launch.driver.spark.task_shape import task_shape
from sparkdl_runner.runner import DistributedRunner

_OF_HOROVOD = ("verbose", "use_gloo", "use_mpi", "extra_mpi_args", "executable")
_KNOWN = (
    *("num_proc", "driver_log_verbosity", "run_config", "env", "start_timeout", "nics"),
    *("stdout", "stderr", "prefix_output_with_timestamp"),
    *_OF_HOROVOD,
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
        start_timeout: As Horovod's, if it is given: ``start_timeout_seconds`` and
            ``slot_wait_seconds`` of ``RunConfig``.
        stdout: As Horovod's: a stream that gets what ranks print, in place of the console, as
            ``[1]<stdout>:a line``.
        stderr: The same of what they write to ``sys.stderr``. What libraries write past Python
            counts as stdout.
        prefix_output_with_timestamp: Whether each line begins with the time.
        nics: As Horovod's, of one interface: ``RunConfig.network_interface``.
        **of_horovod: ``verbose``, ``extra_mpi_args``, ``use_gloo=True``, ``use_mpi=False`` and this
            Python as ``executable`` are of no effect.

    Raises:
        TypeError: ``num_proc`` is no int, ``run_config`` no RunConfig, or an argument unknown.
        ValueError: There is no such verbosity, or ``nics`` names several interfaces.
        LaunchError: MPI or another Python is asked for.

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
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        prefix_output_with_timestamp: bool = False,
        nics: str | Iterable[str] | None = None,
        **of_horovod: Any,
    ) -> None:
        _check_horovods(of_horovod)
        check_config(run_config)
        run_config = run_config or RunConfig()
        if start_timeout is not None:
            run_config = replace(
                run_config, start_timeout_seconds=start_timeout, slot_wait_seconds=start_timeout
            )
        if (interface := _interface(nics)) is not None:
            run_config = replace(run_config, network_interface=interface)
        self._streams: OutputStreams | None = None
        self._marks_errors = False
        if (stdout, stderr) != (None, None) or prefix_output_with_timestamp:
            self._streams = OutputStreams(stdout, stderr, with_time=prefix_output_with_timestamp)
            self._marks_errors = stdout is not stderr or prefix_output_with_timestamp
            # Only then do agents send what ranks print.
            driver_log_verbosity = "all"
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
        variables = {**self._env, **(env or {})}
        own = {name: value for name, value in variables.items() if name not in HOSTS_OWN}
        runner = DistributedRunner(
            num_proc=self._num_proc,
            backend="horovod",
            run_config=with_variables(self._run_config, own, "the estimator or env="),
        )
        if self._streams is not None:
            runner.reports.append(self._streams)
        function = _quiet(with_marked_errors(fn) if self._marks_errors else fn)
        try:
            return runner.gather(function, *args, **kwargs)
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
        shape = task_shape(context, self._run_config, 0)
        return wait_for_slots(context, 0, self._run_config, shape=shape)


def _check_horovods(given: Mapping[str, Any]) -> None:
    """Raises for what is unknown, and for MPI."""
    for name in given.keys() - set(_OF_HOROVOD):
        raise TypeError(f"SparkBackend has no {name}{nearest(name, _KNOWN)}")
    if given.get("use_mpi") or given.get("use_gloo") is False:
        raise LaunchError(
            "use_mpi is True, or use_gloo False, and ranks are not started by MPI here: leave both "
            "out. They meet by gloo, and reduce on GPUs by NCCL where Horovod was built with it."
        )
    if (executable := given.get("executable")) not in (None, sys.executable):
        raise LaunchError(
            f"executable is {executable!r}, and ranks run in the Python of Spark's tasks: leave it "
            "out, and set PYSPARK_PYTHON to that before the session starts."
        )


def _interface(nics: Any) -> str | None:
    names = [nics] if isinstance(nics, str) else sorted(nics or ())
    if len(names) > 1:
        raise ValueError(
            f"nics names {len(names)} interfaces ({', '.join(names)}), and ranks meet by one: give "
            "that, or leave nics out for the one by which Spark knows the hosts."
        )
    return names[0] if names else None


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
