"""The MLflow run of a training, as values that travel from the driver to its ranks."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_MLFLOWS = ("MLFLOW_", "DATABRICKS_")
NAME_TAG = "mlflow.runName"


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """What one rank knows of the run."""

    run_id: str
    run_name: str
    experiment_id: str
    artifact_uri: str
    tracking_uri: str
    is_named: bool
    """Whether the driver was told the run's name; else the function may give one."""
    store_is_elsewhere: bool
    """Whether the store is a file of the driver's host, which this rank is not on."""
    other_ranks: str
    rank: int
    host: str
    folder: str
    """This rank's own temporary folder, gone when it has ended."""

    @property
    def artifacts(self) -> Path:
        """What the rank puts here is kept with the run."""
        return artifacts_in(self.folder)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RunTicket:
    """What every agent is told of the run; rides Spark's own transport, as the function does."""

    run_id: str
    run_name: str
    experiment_id: str
    artifact_uri: str
    tracking_uri: str = field(repr=False)
    credentials: Mapping[str, str] = field(repr=False)
    """Variables by which workers reach MLflow."""
    source: Mapping[str, str]
    """The driver's program, as MLflow's tags; models and runs of rank 0 come from there."""
    is_named: bool
    store_is_elsewhere: bool
    other_ranks: str
    system_metrics: bool
    trace_steps: bool
    horovod_timeline: bool

    def for_rank(self, rank: int, host: str) -> tuple[RankRun, dict[str, str]]:
        """Makes a rank's folder. Returns what the rank is told, and variables for its worker."""
        run = RankRun(
            run_id=self.run_id,
            run_name=self.run_name,
            experiment_id=self.experiment_id,
            artifact_uri=self.artifact_uri,
            tracking_uri=self.tracking_uri,
            is_named=self.is_named,
            store_is_elsewhere=self.store_is_elsewhere,
            other_ranks=self.other_ranks,
            rank=rank,
            host=host,
            folder=tempfile.mkdtemp(prefix=folder_prefix()),
        )
        run.artifacts.mkdir(mode=0o700)
        # All ranks read; what the function starts, in another Python, finds the same run.
        environment = {
            # A host's own way into its cloud comes before the driver's.
            **{
                name: value
                for name, value in self.credentials.items()
                if name.startswith(_MLFLOWS) or name not in os.environ
            },
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "MLFLOW_EXPERIMENT_ID": self.experiment_id,
            "MLFLOW_RUN_ID": self.run_id,
            "MLFLOW_RUN_CONTEXT": json.dumps(dict(self.source)),
        }
        if self.horovod_timeline:
            # All ranks must agree that there is one; rank 0 writes it.
            environment["HOROVOD_TIMELINE"] = str(run.artifacts / "horovod-timeline.json")
        return run, environment


def folder_prefix() -> str:
    """How the names of ranks' folders begin on this host, since it was started.

    Hosts may share their temporary folder, and locks on it need not reach from one to another.
    """
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        host = socket.gethostname()
    return f"sparkdl_runner-rank-{host}-"


def artifacts_in(folder: str | os.PathLike[str]) -> Path:
    """Where in a rank's folder the files are that are kept with the run."""
    return Path(folder) / "artifacts"
