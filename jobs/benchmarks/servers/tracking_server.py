"""A real MLflow server in a process of its own, that can be stopped and started again.

As a script it takes a folder, prints the server's URL, and stops it when it is asked to end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

START_SECONDS = 150
# Without its background jobs, whose processes take seven times as long to start.
DEFAULTS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class TrackingServer:
    """``mlflow server`` on an SQLite database in a folder, or as its ``options`` say otherwise."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._port = _port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"]
        command += ["--artifacts-destination", str(self._folder / "artifacts"), *self._options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")} | DEFAULTS
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self._folder / "server.log").read_text()[-4000:])
            time.sleep(0.1)

    def stop(self) -> None:
        """Kills it and all that it started, as a crash would."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.url}/health", timeout=1).close()  # noqa: S310 - http
            return True
        return False


def _port() -> int:
    """A free port, of those that the kernel gives to nobody: it stays free until the next start."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        # If the kernel gives nearly all ports, ours comes from its range, and may be taken.
        port = random.randrange(10_000, given if given > 20_000 else 60_000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


def main() -> None:
    server = TrackingServer(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.start()
        print(server.url, flush=True)
        signal.pause()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
