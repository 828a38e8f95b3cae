"""An entry: one thing that a training says to its MLflow run, on its way there."""

from __future__ import annotations

from typing import Any

Entry = list[Any]
"""``["metric", key, value, timestamp_ms, step, more]``, ``["param", key, value]`` or
``["tag", key, value]``."""
