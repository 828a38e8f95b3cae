"""A standalone Spark on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyspark

from sparkdl_runner.launch.wire import network

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 300


class StandaloneCluster:
    """A master and two workers of one core each, so that two ranks are on two workers.

    All of them, and whoever submits, authenticate with one secret, which is in a file that only
    this user can read.

    Args:
        folder: To be made for logs, settings and the workers' own folders.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.properties = folder / "spark.conf"
        """Settings of everyone who takes part, for ``--properties-file``."""
        self.url = ""
        """The master's, once it is started."""

    def start(self) -> None:
        """Starts the daemons and waits until the workers are registered."""
        self.properties.touch(mode=0o600)
        self.properties.write_text(
            "spark.authenticate true\n"
            f"spark.authenticate.secret {secrets.token_hex(32)}\n"
            f"spark.local.dir {self.folder / 'local'}\n"
        )
        self._start("master", "master.Master", ["--port", "0"])
        self._wait_for("master", "New state: ALIVE")
        log = (self.folder / "master.log").read_text()
        self.url = re.search(r"Starting Spark master at (spark://\S+)", log)[1]
        for name in ("worker-1", "worker-2"):
            work = self.folder / name
            self._start(
                name,
                "worker.Worker",
                ["--cores", "1", "--memory", "900m", "--work-dir", str(work), self.url],
            )
        for name in ("worker-1", "worker-2"):
            self._wait_for(name, "Successfully registered with master")

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, of all workers."""
        found = []
        for name, daemon in self._daemons.items():
            if name != "master":
                found += psutil.Process(daemon.pid).children()
        return [one for one in found if one.name() == "java"]

    def close(self) -> None:
        """Ends the daemons and all that they have started."""
        family = [psutil.Process(daemon.pid) for daemon in self._daemons.values()]
        family += [child for parent in family for child in parent.children(recursive=True)]
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        for daemon in self._daemons.values():
            daemon.wait()

    def _start(self, name: str, daemon: str, arguments: list[str]) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}"]
        command += ["--host", network.LOOPBACK, "--webui-port", "0"]
        command += ["--properties-file", str(self.properties), *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**environment_for(self.folder), "SPARK_DAEMON_MEMORY": "256m"},
                stdout=log,
                stderr=log,
            )

    def _wait_for(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS
        while words not in log.read_text():
            if self._daemons[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text()[-4000:])
            time.sleep(0.1)


def environment_for(
    scratch: Path, *, driver: Path | None = None, executors: str | None = None
) -> dict[str, str]:
    """The environment in which Spark's programs run here.

    Args:
        scratch: Where temporary files go.
        driver: The Python of a driver.
        executors: The Python that it asks executors to start.
    """
    ours = ("SPARK_", "PYSPARK_", "MLFLOW", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment |= {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": network.LOOPBACK,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # What is killed leaves its temporary files, and they are large.
        "TMPDIR": str(scratch),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch}",
    }
    if driver is not None:
        environment["PYSPARK_DRIVER_PYTHON"] = str(driver)
    if executors is not None:
        environment["PYSPARK_PYTHON"] = executors
    return environment
