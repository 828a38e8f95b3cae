"""``spark-submit``, as a person would call it, in the background."""

from __future__ import annotations

import subprocess
from pathlib import Path

from standalone_cluster import SPARK_HOME, StandaloneCluster

from running_program import RunningProgram
from sparkdl_runner.launch.wire import network

ROOT = Path(__file__).parents[2]


class Submitted(RunningProgram):
    """A job that runs.

    Args:
        cluster: Where.
        environment: Of ``spark-submit`` and the driver.
        log: Where the job's output goes.
        options: Of ``spark-submit``.
        job: The job's file, and its arguments.
    """

    def __init__(
        self,
        cluster: StandaloneCluster,
        environment: dict[str, str],
        log: Path,
        options: list[str],
        job: list[str],
    ) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url]
        command += ["--properties-file", str(cluster.properties), *options]
        for setting in (
            "spark.executor.memory=700m",
            f"spark.driver.host={network.LOOPBACK}",
            f"spark.driver.bindAddress={network.LOOPBACK}",
            "spark.ui.enabled=false",
        ):
            command += ["--conf", setting]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *job], cwd=log.parent, env=environment, stdout=output, stderr=output
            )
        super().__init__(process, log)
