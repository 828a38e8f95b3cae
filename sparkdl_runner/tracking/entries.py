"""An entry: a metric, parameter or tag on its way to the MLflow run."""

from __future__ import annotations

from typing import Any

Entry = list[Any]
"""``["metric", key, value, timestamp_ms, step, more]``, ``["param", key, value]`` or
``["tag", key, value]``."""
