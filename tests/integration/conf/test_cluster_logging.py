"""What Spark says on a cluster, by ``conf/spark/log4j2.properties``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONF = Path(__file__).parents[3] / "conf" / "spark"
LOG = """
from pyspark import SparkConf, SparkContext

SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))
log = SparkContext._jvm.org.slf4j.LoggerFactory.getLogger(
    "org.apache.spark.scheduler.TaskSchedulerImpl"
)
log.warn("Skip current round of resource offers for barrier stage 3 because ...")
log.warn("Initial job has not accepted any resources; check your cluster")
log.info("Adding task set 3.0")
# YARN has a scheduler of its own, of which more is told.
yarn = SparkContext._jvm.org.slf4j.LoggerFactory.getLogger(
    "org.apache.spark.scheduler.cluster.YarnScheduler"
)
yarn.info("Skip current round of resource offers for barrier stage 3 because ...")
yarn.info("Adding task set 4.0")
"""


def test_a_stage_that_waits_for_slots_is_not_told_every_second():
    done = subprocess.run(
        [sys.executable, "-c", LOG],
        env={**os.environ, "SPARK_CONF_DIR": str(CONF)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "has not accepted any resources" in done.stderr
    assert "Skip current round" not in done.stderr
    assert "Adding task set 3.0" not in done.stderr
    assert "Adding task set 4.0" in done.stderr
