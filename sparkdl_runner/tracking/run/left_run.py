"""A run that its driver could not end: its server, and all that its end needs.

It is a file beside the run's spool, which only this user can read: a server's address may hold a
password.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkdl_runner.base.foreign_file import ForeignFileError, build
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.report.run_summary import AttemptRow, RunSummary
from sparkdl_runner.tracking.run.spool import SPOOLS

_SUFFIX = ".left.json"


@dataclass(frozen=True, kw_only=True)
class LeftRun:
    """A run as its driver leaves it."""

    tracking_uri: str
    """Where the run is."""
    lease: str = ""
    """Which lease its driver held on it; see ``Holder``."""
    status: str = ""
    """How the training ended, as MLflow calls it; empty if its driver was lost before."""
    ended_at: float = 0.0
    """When that was, in seconds since the epoch."""
    is_ours: bool = True
    """Whether to end the run: not if the training's caller had it open already."""
    folder: str = ""
    """The run's files on this host."""
    report: dict[str, Any] | None = field(default=None, repr=False)
    """A ``RunSummary``; None for no report."""

    def write(self, run_id: str) -> None:
        """Keeps it for ``deliver``, unless the disk is full."""
        path = _path_of(run_id)
        part = path.with_name(f"{uuid.uuid4()}.part")
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, 0o600), "w") as file:
                json.dump(asdict(self), file)
            part.replace(path)

    def summary(self, run: Any) -> RunSummary:
        """The summary of an ``mlflow.entities.Run``, with what its driver knew."""
        facts = dict(self.report or {})
        facts["attempts"] = [_attempt(row) for row in facts["attempts"]]
        facts["totals"] = {int(rank): Counts(**counts) for rank, counts in facts["totals"].items()}
        facts["hosts"] = {int(rank): host for rank, host in facts["hosts"].items()}
        summary = RunSummary(**{**facts, "status": self.status}).of(run)
        summary.ended_at = self.ended_at
        return summary


def _attempt(fields: dict[str, Any]) -> AttemptRow:
    time = fields["time"]
    return AttemptRow(**{**fields, "time": None if time is None else AttemptTime(**time)})


def left_run(run_id: str) -> LeftRun | None:
    """What a driver of this user has left on this host; None if that is nothing, or not whole."""
    try:
        return build(LeftRun, json.loads(_path_of(run_id).read_text()))
    except (OSError, ValueError, ForeignFileError):
        return None


def left_runs() -> list[str]:
    """The ids of all runs that this user's drivers have left on this host."""
    paths = private_folder(SPOOLS).glob(f"*{_SUFFIX}")
    return sorted(path.name.removesuffix(_SUFFIX) for path in paths)


def forget(run_id: str) -> None:
    """Removes what was left: the run has ended."""
    with suppress(OSError):
        _path_of(run_id).unlink(missing_ok=True)


def _path_of(run_id: str) -> Path:
    return private_folder(SPOOLS) / f"{run_id}{_SUFFIX}"
