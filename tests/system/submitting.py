"""``spark-submit``, as a person would call it, in the background."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from standalone_cluster import SPARK_HOME, StandaloneCluster

from sparkdl_runner.wire import network

ROOT = Path(__file__).parents[2]
MINUTES = 4


class Submitted:
    """A job that runs; used as a context, it has ended when that is left.

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
        self._log = log
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
            self._process = subprocess.Popen(
                [*command, *job], cwd=log.parent, env=environment, stdout=output, stderr=output
            )

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            driver = psutil.Process(self._process.pid)
            for process in [driver, *driver.children(recursive=True)]:
                process.kill()
            self._process.wait()

    @property
    def output(self) -> str:
        """What the job has said until now."""
        return self._log.read_text(errors="replace")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until something holds while the job runs."""
        deadline = time.monotonic() + MINUTES * 60
        while not holds():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it came to no {what}:\n{self.output[-6000:]}")
            time.sleep(0.05)

    def succeed(self) -> str:
        """Waits until the job has ended well. Returns its output."""
        code = self._process.wait(MINUTES * 60)
        assert code == 0, f"exit code {code}:\n{self.output[-6000:]}"
        return self.output
