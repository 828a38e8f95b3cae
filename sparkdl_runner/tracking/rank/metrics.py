"""``log_metrics``, which a training calls after every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl_runner.tracking.rank.recorder import Recorder

_recorder: Recorder | None = None


def log_metrics(
    step: int,
    metrics: Mapping[str, Any] | None = None,
    *,
    samples: int | None = None,
    epoch: int | None = None,
    total_steps: int | None = None,
    **values: Any,
) -> None:
    """Logs a step's metrics. Takes microseconds, so call it after every step, on every rank.

    Rank 0's metrics go to the MLflow run of the training, if there is one; those of other ranks
    are dropped, but their steps and samples count. They make the progress bar on the driver,
    samples/s, and the time by part of a step. A number that is NaN or infinite is logged as such,
    and the driver prints a warning once.

    Outside of a rank, the metrics go to MLflow's active run, if there is one.

    Args:
        step: The number of the step, growing over the whole training.
        metrics: Numbers, or tensors of one number, by name.
        samples: Rows that this rank has worked through since the last call.
        epoch: The epoch that the step is part of.
        total_steps: How many steps the training will have, for the time that is left.
        **values: More metrics, by name.

    Raises:
        TypeError: A metric is no number, or the step is no whole number.
        ValueError: MLflow takes no such name.

    Example:
        >>> log_metrics(step, loss=loss, samples=len(batch), total_steps=1000)  # doctest: +SKIP
    """
    recorder = _recorder or _recorder_outside_ranks()
    if metrics is not None:
        values = {**metrics, **values} if values else metrics  # type: ignore[assignment]
    recorder.log_metrics(step, values, samples=samples, epoch=epoch, total_steps=total_steps)


def log_parameters(parameters: Mapping[str, str]) -> None:
    """Logs parameters to the MLflow run of the training, if there is one; on rank 0 only.

    They go by way of the driver, so that the rank need not import mlflow, which takes seconds.
    """
    if _recorder is not None:
        _recorder.add([["param", name, value] for name, value in parameters.items()])


def use(recorder: Recorder | None) -> None:
    """Makes ``log_metrics`` use ``recorder``."""
    global _recorder
    _recorder = recorder


def _recorder_outside_ranks() -> Recorder:
    from sparkdl_runner.tracking.rank import outside_ranks  # Each rank's start would wait for it.

    return outside_ranks.recorder()


def newest_step() -> int:
    """The last step of a metric of this rank; 0 where it has logged none."""
    return 0 if _recorder is None else _recorder.newest_step
