"""The MLflow run of a training, as values that travel from the driver to its ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sparkdl_runner.base.this_host import boot_id, namespace

_MLFLOW, _DATABRICKS, _CLOUDS = "MLFLOW_", "DATABRICKS_", ("AWS_", "AZURE_", "GOOGLE_")
# Variables that identify the user. They are never mixed from two hosts.
_WHO = re.compile(
    r"(MLFLOW_TRACKING|DATABRICKS|AWS|AZURE|GOOGLE)_.*"
    r"(KEY|SECRET|TOKEN|PROFILE|CREDENTIAL|CLIENT_ID|TENANT|USER|PASSWORD|ROLE|ACCOUNT"
    r"|CONNECTION|AUTH|HOST|SIGV4)"
)
NAME_TAG = "mlflow.runName"
OWN_RUN_TAG = "sparkdl_runner.function_run"
"""The id of a run that the function made beside the training's, in another experiment."""


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """A store that is a file or a folder, so that another host can tell whether it has the same."""

    path: str
    host: str
    """The host's start and network: a container has another than its machine."""
    device: int
    inode: int

    @classmethod
    def at(cls, path: str) -> StoreFile:
        """The one at a path of this host. One that is not there is found nowhere."""
        try:
            status = os.stat(path)
        except OSError:
            return cls(path=path, host="", device=-1, inode=-1)
        return cls(path=path, host=_host(), device=status.st_dev, inode=status.st_ino)

    def is_here(self) -> bool:
        """Whether this process reaches the very same file, to read and to write."""
        is_same = bool(self.host) and StoreFile.at(self.path) == self
        return is_same and os.access(self.path, os.R_OK | os.W_OK)


@dataclass(frozen=True, kw_only=True)
class _Run:
    run_id: str
    run_name: str
    experiment_id: str
    artifact_uri: str
    tracking_uri: str = field(repr=False)
    given_uri: str = field(repr=False)
    """The same as the user wrote it; where it is relative, it is so to the driver's folder."""
    is_named: bool
    """Whether the user has named the run; else the function may."""
    other_ranks: str


@dataclass(frozen=True, kw_only=True)
class RankRun(_Run):
    """The run, as one rank knows it."""

    store_is_elsewhere: bool
    """Whether the store is a file of the driver's host, which this rank is not on."""
    rank: int
    host: str
    folder: str
    """This rank's own temporary folder, gone when it has ended."""

    @property
    def artifacts(self) -> Path:
        """The files in it become artifacts of the run."""
        return artifacts_in(self.folder)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RunTicket(_Run):
    """The run, as every agent knows it. It travels with the function, by Spark's transport."""

    credentials: Mapping[str, str] = field(repr=False)
    """Environment variables by which workers reach MLflow."""
    store_file: StoreFile | None
    """The file that the store is, if that is all it is; None where every rank reaches the store."""
    source: Mapping[str, str]
    """The driver's program, as MLflow's tags: the source of models and runs that rank 0 makes."""
    system_metrics: bool
    trace_steps: bool
    horovod_timeline: bool

    def for_rank(self, rank: int, host: str) -> tuple[RankRun, dict[str, str]]:
        """Makes a rank's folder. Returns the rank's values, and its worker's variables."""
        shared = {member.name: getattr(self, member.name) for member in fields(_Run)}
        folder = tempfile.mkdtemp(prefix=folder_prefix())
        is_elsewhere = self.store_file is not None and not self.store_file.is_here()
        run = RankRun(
            **shared, rank=rank, host=host, folder=folder, store_is_elsewhere=is_elsewhere
        )
        credentials = {} if is_elsewhere else self.credentials
        run.artifacts.mkdir(mode=0o700)
        # Processes that the function starts find the same run.
        environment = {
            **{name: credentials[name] for name in credentials if _is_taken(name)},
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "MLFLOW_EXPERIMENT_ID": self.experiment_id,
            "MLFLOW_RUN_ID": self.run_id,
            "MLFLOW_RUN_CONTEXT": json.dumps(dict(self.source)),
        }
        if self.horovod_timeline:
            # Set on all ranks, since they must agree; rank 0 writes it.
            environment["HOROVOD_TIMELINE"] = str(run.artifacts / "horovod-timeline.json")
        return run, environment

    def to_forget(self) -> list[str]:
        """This host's variables that identify a user to MLflow or Databricks; the driver's win."""
        kinds = [_MLFLOW]
        if any(_WHO.match(name) and name.startswith(_DATABRICKS) for name in self.credentials):
            kinds.append(_DATABRICKS)
        return [
            name
            for name in os.environ
            if name.startswith(tuple(kinds)) and _WHO.match(name) and name not in self.credentials
        ]


def _is_taken(name: str) -> bool:
    """Whether a rank takes this variable of the driver's.

    A host's own credentials for its cloud come before the driver's, and all of them do.
    """
    cloud = next((prefix for prefix in _CLOUDS if name.startswith(prefix)), None)
    if cloud is None:
        return True
    if _WHO.match(name):
        return not any(own.startswith(cloud) and _WHO.match(own) for own in os.environ)
    return name not in os.environ


def folder_prefix() -> str:
    """How the names of ranks' folders begin on this host, until it is started anew.

    Hosts may share a temporary folder, and file locks need not work between hosts.
    """
    return f"sparkdl_runner-rank-{_boot()}-"


def _host() -> str:
    """Names this host, as long as it runs, also where hosts of a network share a name."""
    return f"{_boot()} {namespace('net')}".rstrip()


def _boot() -> str:
    """The name of this start of this machine; its host's name where the kernel has none."""
    return boot_id() or socket.gethostname()


def artifacts_in(folder: str | os.PathLike[str]) -> Path:
    """The part of a rank's folder whose files become artifacts of the run."""
    return Path(folder) / "artifacts"
