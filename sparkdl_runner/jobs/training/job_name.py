"""The default name of a training: that of the scheduler's job that runs it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.base.databricks import on_databricks
from sparkdl_runner.launch.config import MOST_NAME_CHARACTERS

_DATABRICKS_JOB, _DATABRICKS_RUN = "mlflow.databricks.jobID", "mlflow.databricks.jobRunID"
_AIRFLOW = ("AIRFLOW_CTX_DAG_ID", "AIRFLOW_CTX_TASK_ID", "AIRFLOW_CTX_DAG_RUN_ID")
# Which trainings of one job are the same: not how or where they run, which a retry may change.
_NOT_THE_TRAINING = (
    *("num_proc", "run_config", "tracking", "name", "rerun_finished", "cache_url", "events"),
)

# A job keeps the name that it had before this key was called otherwise.
_EARLIER = {"batch_size": "batch_size_per_rank"}


@dataclass(frozen=True)
class JobName:
    """A name, and how often a scheduler gives it."""

    name: str
    comes_again: bool
    """Whether later trainings have it too, so that one that has finished is no reason to stop."""


def job_name(settings: Mapping[str, Any]) -> JobName | None:
    """The name that follows from the scheduler's job and from what is trained; None without a job.

    Args:
        settings: Those that were given, as plain values. One job may train several things.
    """
    comes_again = False
    parts = _databricks() or _airflow()
    if not parts and (application := _spark_application()):
        parts, comes_again = [application], True
    if not parts:
        return None
    what = {
        _EARLIER.get(key, key): value
        for key, value in settings.items()
        if key not in _NOT_THE_TRAINING
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:8]
    text = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts)).strip("-._") or "job"
    if len(text) > (most := MOST_NAME_CHARACTERS - 18):
        whole = hashlib.sha256(text.encode()).hexdigest()[:8]
        text = f"{text[:most]}-{whole}"
    return JobName(f"{text}-{digest}", comes_again)


def _databricks() -> list[str]:
    """The job and its run, which its retries and repairs share."""
    if not on_databricks():
        return []
    from mlflow.tracking.context.registry import resolve_tags

    tags = resolve_tags()
    job, run = tags.get(_DATABRICKS_JOB), tags.get(_DATABRICKS_RUN)
    with suppress(Exception):  # It is MLflow's own, and not in all of its versions.
        from mlflow.utils.databricks_utils import _get_context_tag

        run = _get_context_tag("multitaskParentRunId") or run
    return [f"databricks-{job}", str(run)] if job and run else []


def _airflow() -> list[str]:
    """The graph, the task, and the graph's run, which all tries of a task share."""
    values = [os.environ.get(name, "") for name in _AIRFLOW]
    return ["airflow", *values] if all(values) else []


def _spark_application() -> str | None:
    """The name that was given to ``spark-submit``; it gives an application its file's otherwise."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    name = SparkConf().get("spark.app.name")
    return None if not name or name == os.path.basename(sys.argv[0]) else str(name)
