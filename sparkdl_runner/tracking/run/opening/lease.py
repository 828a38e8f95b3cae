"""Which driver holds a run, so that two never write to it at the same time."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping

import psutil

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.entries import Entry

# MLflow's pages show no tags that begin so.
HOLDER_TAG = "mlflow.sparkdl_runner.driver"
ALIVE_TAG = "mlflow.sparkdl_runner.driver_alive_at"
RENEW_SECONDS = 20.0
EXPIRE_SECONDS = 90.0

held_here: set[str] = set()
"""The runs that threads of this driver hold."""


def require_not_held(run_id: str | None) -> None:
    """Raises LaunchError if another thread of this driver holds a run."""
    if run_id in held_here:
        raise LaunchError(
            f"The MLflow run {run_id} is active in another thread of this driver. Wait until that "
            "training is over."
        )


class Lease:
    """This driver's hold on a run, kept as two tags of it."""

    def __init__(self) -> None:
        own = psutil.Process()
        self.holder = (
            f"{socket.gethostname()} {own.pid} {own.create_time():.0f} {uuid.uuid4().hex} "
            f"{time.time():.0f}"
        )

    def entries(self, now: float | None = None) -> list[Entry]:
        """The tags that say that this driver holds the run, and lives."""
        at = time.time() if now is None else now
        return [["tag", HOLDER_TAG, self.holder], ["tag", ALIVE_TAG, f"{at:.0f}"]]

    def held_by_another(self, tags: Mapping[str, str], now: float | None = None) -> str | None:
        """The other driver that holds a run with these tags, in words; None if there is none."""
        holder, alive_at = tags.get(HOLDER_TAG, ""), tags.get(ALIVE_TAG, "")
        parts = holder.split()
        if holder == self.holder or len(parts) not in (4, 5) or not alive_at.isdecimal():
            return None
        host, pid, created, _, *since = parts
        silent = (time.time() if now is None else now) - float(alive_at)
        if silent > EXPIRE_SECONDS:
            return None
        if host == socket.gethostname() and not _runs(pid, created):
            return None
        told = f"the driver with process id {pid} on host {host}"
        if since and since[0].isdecimal():  # Earlier versions did not say so.
            began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(since[0])))
            told += f" runs it since {began}"
        return f"{told}, heard of {max(0, silent):.0f} s ago"

    @staticmethod
    def is_on_this_host(tags: Mapping[str, str]) -> bool:
        """Whether the holder of a run with these tags is on this host."""
        return tags.get(HOLDER_TAG, "").partition(" ")[0] == socket.gethostname()


def _runs(pid: str, created: str) -> bool:
    """Whether a process of this host lives."""
    try:
        process = psutil.Process(int(pid))
        # Process ids are reused; with a start time they are unique.
        return f"{process.create_time():.0f}" == created and process.pid != os.getpid()
    except (psutil.Error, ValueError):
        return False
