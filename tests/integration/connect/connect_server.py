"""Spark Connect servers as processes of their own, whose Python lacks this package."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from ports import reusable_port
from running_program import RunningProgram
from sparkdl_runner.launch.wire import network

LOG4J = Path(__file__).parents[3] / "conf" / "log4j2.properties"
HOST = "127.0.0.1"


def bare_python(folder: Path) -> str:
    """A Python with the packages of this one, but for this package, which is not copied there."""
    venv.create(folder)
    libraries = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # What such a line names is searched, and the .pth files there are not read.
    (libraries / "site-packages" / "lane.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return str(folder / "bin" / "python")


def wait_for(condition: Callable[[], object]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def use(session: Any) -> None:
    """Makes a session this thread's and the process's; pyspark keeps the first one by itself."""
    type(session)._default_session = session
    type(session)._active_session.session = session


class ConnectServer(RunningProgram):
    """A server, whose sessions have four slots.

    Args:
        process: The server.
        log: The file of its output.
        port: Where it listens.
        modules: A folder on the search path of its Python.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, port: int, modules: Path
    ) -> None:
        super().__init__(process, log)
        self.port = port
        self.modules = modules
        self.pid = process.pid

    @property
    def url(self) -> str:
        """What a client gives to ``remote``."""
        return f"sc://{HOST}:{self.port}"

    def kill(self) -> None:
        """Ends it as a host's crash does, with all that it has started."""
        with suppress(psutil.Error):
            for one in [psutil.Process(self.pid), *psutil.Process(self.pid).children(True)]:
                one.kill()
        self.wait()


@contextmanager
def started(
    folder: Path, python: str, *settings: str, port: int | None = None
) -> Iterator[ConnectServer]:
    """Starts a server and waits until it listens.

    Args:
        folder: Where it keeps its log and other files.
        python: Its executors'.
        *settings: Spark's, as ``name=value``.
        port: Where it listens; None for any.
    """
    port = port or reusable_port()
    modules = folder / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    options = {
        "spark.master": "local[4]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOG4J}",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    given = [f"{name}={value}" for name, value in options.items()] + list(settings)
    home = Path(pyspark.__file__).parent
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                home / "bin" / "spark-submit",
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(text for one in given for text in ("--conf", one)),
                "spark-internal",
            ],
            env={
                **{name: value for name, value in os.environ.items() if "CONNECT" not in name},
                "PYSPARK_PYTHON": python,
                "PYTHONPATH": str(modules),
                "SPARK_HOME": str(home),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with ConnectServer(process, log, port, modules) as server:
        server.wait_until(lambda: network.answers(HOST, port, 1), "server that listens")
        yield server
