"""An entry: a metric, parameter or tag on its way to the MLflow run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ATTEMPT_TAG = "sparkdl_runner.attempt"
"""The tag that has the number of the attempt that is running."""

HIDDEN = "mlflow.sparkdl_runner."
"""How tags begin that are for this package alone: MLflow's pages show none that begin ``mlflow.``.
"""

Entry = list[Any]
"""``["metric", key, value, timestamp_ms, step, more]``, ``["param", key, value]`` or
``["tag", key, value]``."""


def hidden_tag(tags: Mapping[str, str], name: str) -> str | None:
    """The value of a tag that begins with ``HIDDEN``; None without it.

    Runs of earlier versions have it where people see it, under ``sparkdl_runner.``.
    """
    return tags.get(name, tags.get(name.removeprefix("mlflow.")))


def is_metric_entry(entry: Any) -> bool:
    """Whether something that was read from a checkpoint is a metric's entry."""
    if not isinstance(entry, list) or len(entry) != 6 or entry[0] != "metric":
        return False
    _, name, value, at, step, extra = entry
    is_whole = type(at) is int and type(step) is int
    return is_whole and isinstance(name, str) and type(value) is float and isinstance(extra, dict)


def is_entry(entry: Any) -> bool:
    """Whether something that was read from a file is an entry."""
    if is_metric_entry(entry):
        return True
    if not isinstance(entry, list) or len(entry) != 3 or entry[0] not in ("param", "tag"):
        return False
    return isinstance(entry[1], str) and isinstance(entry[2], str)
