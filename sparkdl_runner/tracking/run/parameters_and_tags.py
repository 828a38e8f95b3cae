"""The parameters and tags that every run gets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparkdl_runner import __version__
from sparkdl_runner.tracking.entries import Entry

PACKAGES = ("pyspark", "torch", "horovod", "petastorm", "pyarrow", "mlflow", "numpy")
GIT_COMMIT_TAG = "mlflow.source.git.commit"
GIT_SECONDS = 5.0
PREFIX = "sparkdl_runner."


def parameters(*, num_proc: int, backend: str, settings: Mapping[str, Any]) -> list[Entry]:
    """What was asked for.

    Args:
        num_proc: As the runner was given it.
        backend: Its name.
        settings: Those of the runner's settings that are not what they are by default.
    """
    asked = {"num_proc": num_proc, "backend": backend, **settings}
    return [["param", name, str(value)] for name, value in asked.items()]


def placement(hosts: Collection[tuple[str, int]], gpus: int) -> list[Entry]:
    """Where ranks ran.

    Args:
        hosts: Each host's name and number of ranks.
        gpus: How many GPUs all hosts gave to the run.
    """
    return [
        ["param", "hosts", ", ".join(f"{host} ({ranks})" for host, ranks in hosts)],
        ["param", "num_hosts", str(len(hosts))],
        ["param", "world_size", str(sum(ranks for _, ranks in hosts))],
        ["param", "gpus", str(gpus)],
    ]


def tags(given: Mapping[str, str], application_id: str | None) -> list[Entry]:
    """Versions, the code's commit, and Spark's name for the application."""
    found = {f"{PREFIX}version": __version__, "versions.python": sys.version.partition(" ")[0]}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[f"versions.{package}"] = version(package)
    if application_id is not None:
        found["spark.application_id"] = application_id
    if commit := git_commit():
        found[GIT_COMMIT_TAG] = commit
    return [["tag", name, value] for name, value in {**found, **given}.items()]


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of the code that was started, with ``-dirty`` if files were changed since.

    Args:
        folder: Where the code is; None for the program that this process runs.
    """
    if folder is None:
        script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
        folder = script.resolve().parent if script is not None and script.is_file() else Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "--untracked-files=no"):
        commit += "-dirty"
    return commit or None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def known_facts(facts: Mapping[str, Any]) -> list[Entry]:
    """Facts of rank 0's training: its batches, and its newest checkpoint."""
    sizes = dict(facts)
    if "batch_size_per_rank" in facts and "world_size" in facts:
        sizes.setdefault("global_batch_size", facts["batch_size_per_rank"] * facts["world_size"])
    told: list[Entry] = [
        ["param", name, str(sizes[name])]
        for name in ("batch_size_per_rank", "global_batch_size", "steps_per_epoch")
        if name in sizes
    ]
    if "checkpoint" in facts:
        told.append(["tag", f"{PREFIX}checkpoint", str(facts["checkpoint"])])
        told.append(["tag", f"{PREFIX}checkpoint_step", str(facts.get("checkpoint_step", ""))])
    return told
