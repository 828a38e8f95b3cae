"""Asks YARN for another application master, and for the number of containers.

Another master is needed in client mode when its host has vanished. YARN misses the host only after
ten minutes; until then nobody answers the driver, and it can get no new executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.driver.spark.context import settings_of

if TYPE_CHECKING:
    from pyspark import SparkContext


def replace_master(context: SparkContext, is_lost: Callable[[str], bool]) -> bool:
    """Has YARN start another master, if the host of this one has vanished.

    Args:
        context: The application's context.
        is_lost: Whether a host has vanished.

    Returns:
        Whether it did. If so, YARN ends all executors, and the new master asks for as many.
    """
    if context.master != "yarn" or settings_of(context).get("spark.submit.deployMode") == "cluster":
        return False
    with _asked(context) as (client, report, settings):
        if not is_lost(report.getHost()):
            return False
        attempt = report.getCurrentApplicationAttemptId()
        if attempt.getAttemptId() >= _most_attempts(context, settings):
            tell(
                f"the application master was on host {report.getHost()}, which has vanished, and "
                "YARN may start no other: raise spark.yarn.maxAppAttempts, or "
                "yarn.resourcemanager.am.max-attempts of the cluster."
            )
            return False
        tell(
            f"the application master was on host {report.getHost()}, which has vanished: YARN was "
            "asked for another, which starts all executors again."
        )
        client.failApplicationAttempt(attempt)
        return True


def count_containers(context: SparkContext) -> int:
    """How many containers YARN has given to executors, whether or not these have registered."""
    with _asked(context) as (_, report, _settings):
        used = report.getApplicationResourceUsageReport().getNumUsedContainers()
        return int(used) - 1  # The application master's.


@contextmanager
def _asked(context: SparkContext) -> Iterator[tuple[Any, Any, Any]]:
    """YARN's client, its report of the application, and its settings."""
    jvm: Any = context._jvm
    yarn = jvm.org.apache.hadoop.yarn
    settings = yarn.conf.YarnConfiguration(context._jsc.hadoopConfiguration())
    client = yarn.client.api.YarnClient.createYarnClient()
    client.init(settings)
    client.start()
    try:
        application = yarn.api.records.ApplicationId.fromString(context.applicationId)
        yield client, client.getApplicationReport(application), settings
    finally:
        client.stop()


def _most_attempts(context: SparkContext, settings: Any) -> int:
    cluster = int(settings.getInt("yarn.resourcemanager.am.max-attempts", 2))
    own = settings_of(context).get("spark.yarn.maxAppAttempts")
    return cluster if own is None else min(cluster, int(own))
