"""Executors that have been given a place, and have yet to register.

Their hosts may first fetch an image or unpack an environment, which takes minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl_runner.base.time_limits import answer_within
from sparkdl_runner.launch.driver.spark import pods, yarn
from sparkdl_runner.launch.driver.spark.executors import list_executors

if TYPE_CHECKING:
    from pyspark import SparkContext

_ANSWER_SECONDS = 5.0


def coming_executors(context: SparkContext) -> int:
    """How many there are, as far as YARN or Kubernetes tells; 0 elsewhere."""
    master = context.master or ""
    if master == "yarn":
        count = answer_within(_ANSWER_SECONDS, lambda: _in_containers(context))
    elif master.startswith("k8s://"):
        count = answer_within(_ANSWER_SECONDS, lambda: _in_pods(context))
    else:
        count = 0
    return count or 0


def _in_containers(context: SparkContext) -> int:
    return max(0, yarn.count_containers(context) - len(list_executors(context)))


def _in_pods(context: SparkContext) -> int:
    registered = {executor.identifier for executor in list_executors(context)}
    return len(pods.starting_executors(context) - registered)
