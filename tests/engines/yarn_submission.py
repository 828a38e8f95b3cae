"""``spark-submit`` on the driver's machine, as a person would call it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from yarn import HEAD, SPARK_HOME, Yarn

from engines import ROOT
from running_program import RunningProgram

# Sizes for a small machine. Hosts share its disk, and so this Python and Spark's jars.
_SETTINGS = {
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1500m",
    "spark.driver.memory": "700m",
    "spark.driver.memoryOverhead": "1500m",
    "spark.yarn.am.memory": "400m",
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.yarn.appMasterEnv.PYTHONPATH": str(ROOT),
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
}


class Submission(RunningProgram):
    """An application that runs.

    Args:
        yarn: Where.
        log: Where its output goes.
        job: The job's file, and its arguments.
        mode: ``client`` or ``cluster``.
        settings: Of Spark, beside those for a small machine; an empty one of these is left out.
        environment: Variables of the shell.
    """

    def __init__(
        self,
        yarn: Yarn,
        log: Path,
        job: list[str],
        *,
        mode: str = "client",
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._yarn = yarn
        defaults = ROOT / "conf" / "spark" / "spark-defaults.conf"
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn"]
        command += ["--deploy-mode", mode, "--properties-file", str(defaults)]
        for name, value in {**_SETTINGS, **(settings or {})}.items():
            command += ["--conf", f"{name}={value}"] if value else []
        super().__init__(run_on_head(yarn, log, [*command, *job], environment or {}), log)

    def __exit__(self, *_: object) -> None:
        # On the driver's machine, which has a process table of its own.
        for _, process in self._yarn.processes("org.apache.spark.deploy"):
            process.kill()
        super().__exit__()

    def steps(self) -> list[tuple[int, float]]:
        """The steps of rank 0 in the order in which they were taken, with their times."""
        return self._moments("rank 0 has taken step")

    def begins(self) -> list[tuple[int, float]]:
        """The steps that each attempt of rank 0 found saved, with the time of its begin."""
        return self._moments("rank 0 begins at")

    def _moments(self, what: str) -> list[tuple[int, float]]:
        found = re.findall(rf"{what} (\d+) at ([\d.]+)", self.output)
        return [(int(step), float(at)) for step, at in found]


def run_on_head(
    yarn: Yarn, log: Path, command: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a command on the driver's machine."""
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(ROOT / "conf" / "spark"),
        "HADOOP_CONF_DIR": str(yarn.configuration),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    inside = yarn.inside(HEAD, "env", f"--chdir={log.parent}", *command)
    with log.open("wb") as output:
        return subprocess.Popen(
            inside, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
