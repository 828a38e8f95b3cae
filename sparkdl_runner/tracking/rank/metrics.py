"""``log_metrics``: what a training says at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkdl_runner.tracking.rank import outside_ranks
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
    """Says how a step went. Takes some microseconds, so call it after every step, on every rank.

    Rank 0's metrics go to the MLflow run of the training, if there is one; those of other ranks
    are passed over, but their steps and samples count. From all of it come the progress bar on the
    driver, samples/s, and the time by part of a step. A number that is NaN or infinite is logged
    as such, and said on the driver once.

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
    recorder = _recorder or outside_ranks.recorder()
    if metrics is not None:
        values = {**metrics, **values} if values else metrics  # type: ignore[assignment]
    recorder.log_metrics(step, values, samples=samples, epoch=epoch, total_steps=total_steps)


def use(recorder: Recorder | None) -> None:
    """Makes ``log_metrics`` speak to ``recorder``."""
    global _recorder
    _recorder = recorder


def newest_step() -> int:
    """The last step that this rank has told a metric of; 0 where it has told none."""
    return 0 if _recorder is None else _recorder.newest_step
