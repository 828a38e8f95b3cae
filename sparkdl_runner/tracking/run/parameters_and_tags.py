"""The parameters and tags that every run gets, and those of the run above it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparkdl_runner.base.version import __version__
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.markdown import escaped
from sparkdl_runner.tracking.report.run_summary import (
    CHECKPOINT_WARNING_TAG,
    NUM_HOSTS_TAG,
    PREFIX,
    VERSIONS_TAG,
)

PACKAGES = ("pyspark", "torch", "horovod", "petastorm", "pyarrow", "mlflow", "numpy")
GIT_COMMIT_TAG = "mlflow.source.git.commit"
GIT_SECONDS = 5.0
CHILDREN_TAG, NOTE_TAG = f"{PREFIX}runs", "mlflow.note.content"
_HEADING, _BEST = "Trainings of this run:", "**Best: "
_MOST_CHARACTERS = 5000
_ONE_AT_A_TIME = threading.Lock()
# The names that MLflow accepts for a parameter.
_NAME = re.compile(r"[\w. :/-]{1,250}")
MAX_ARGUMENTS, MAX_ARGUMENT_CHARACTERS, MAX_DEPTH = 200, 500, 3


def parameters(arguments: Mapping[str, Any]) -> list[Entry]:
    """The arguments of the function, as parameters: numbers and short texts, also in mappings.

    Args:
        arguments: By name.
    """
    return [["param", name, text] for name, text in _plain(arguments, "", 0)][:MAX_ARGUMENTS]


def _plain(values: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if type(value) is dict and depth < MAX_DEPTH:
            yield from _plain(value, f"{name}.", depth + 1)
        elif isinstance(value, (bool, int, float, str, type(None))):
            text = str(value)
            if len(text) <= MAX_ARGUMENT_CHARACTERS and _NAME.fullmatch(name):
                yield name, text


def placement(hosts: Collection[tuple[str, int]], gpus: int) -> list[Entry]:
    """The hosts and GPUs as tags, and the number of ranks as a parameter: results depend on it.

    Args:
        hosts: Each host's name and number of ranks.
        gpus: How many GPUs all hosts gave to the run.
    """
    return [
        ["param", "world_size", str(sum(ranks for _, ranks in hosts))],
        ["tag", f"{PREFIX}hosts", ", ".join(f"{host} ({ranks})" for host, ranks in hosts)],
        ["tag", NUM_HOSTS_TAG, str(len(hosts))],
        ["tag", f"{PREFIX}gpus", str(gpus)],
    ]


def tags(
    given: Mapping[str, str], settings: Mapping[str, Any], application_id: str | None
) -> list[Entry]:
    """The runner's settings, versions, the code's commit, and Spark's name for the application.

    All begin alike, so that MLflow's page shows them beside one another, apart from the user's.

    Args:
        given: The user's own.
        settings: The runner's: what it was asked for, and what is not as by default.
        application_id: Of Spark.
    """
    versions = {"python": sys.version.partition(" ")[0]}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    values = {f"{PREFIX}{name}": str(value) for name, value in settings.items()}
    values[f"{PREFIX}version"] = __version__
    values[VERSIONS_TAG] = ", ".join(f"{name} {text}" for name, text in versions.items())
    if application_id is not None:
        values[f"{PREFIX}application_id"] = application_id
    if GIT_COMMIT_TAG not in given and (commit := git_commit()):
        values[GIT_COMMIT_TAG] = commit
    return [["tag", name, value] for name, value in {**values, **given}.items()]


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
    entries: list[Entry] = [
        ["param", name, str(sizes[name])]
        for name in ("batch_size_per_rank", "global_batch_size", "steps_per_epoch")
        if name in sizes
    ]
    if "checkpoint" in facts:
        entries.append(["tag", f"{PREFIX}checkpoint", str(facts["checkpoint"])])
        entries.append(["tag", f"{PREFIX}checkpoint_step", str(facts.get("checkpoint_step", ""))])
    if "failed_saves" in facts:
        failed = f"{facts['failed_saves']} saves failed. {facts.get('failed_save', '')}"
        entries.append(["tag", CHECKPOINT_WARNING_TAG, failed])
    return entries


def tell_parent(client: Any, parent_id: str, run: Any) -> None:
    """Adds a training to its parent: its id to a tag, and a link to the description.

    A description that a person has written stays as it is.

    Args:
        client: An ``MlflowClient`` of the store of both.
        parent_id: The parent.
        run: The training's.
    """
    # Trainings beside one another would each leave out what the other adds.
    with _ONE_AT_A_TIME:
        _add_child(client, parent_id, run)


def _add_child(client: Any, parent_id: str, run: Any) -> None:
    parent = client.get_run(parent_id)
    children = [*filter(None, parent.data.tags.get(CHILDREN_TAG, "").split(",")), run.info.run_id]
    while len(",".join(children)) > _MOST_CHARACTERS:
        children.pop(0)
    client.set_tag(parent_id, CHILDREN_TAG, ",".join(children))
    note = parent.data.tags.get(NOTE_TAG, _HEADING)
    if note.startswith((_HEADING, _BEST)) and len(note) < _MOST_CHARACTERS:
        link = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
        name = escaped(str(run.info.run_name))
        client.set_tag(parent_id, NOTE_TAG, f"{note}\n- [{name}]({link})")


def tell_best(client: Any, parent_id: str, best: str) -> None:
    """Begins the description of a run with the best of its trainings.

    A description that a person has written stays as it is.

    Args:
        client: An ``MlflowClient``.
        parent_id: The run.
        best: What is best, in words.
    """
    note = client.get_run(parent_id).data.tags.get(NOTE_TAG, _HEADING)
    if note.startswith((_HEADING, _BEST)):
        trainings = note[note.find(_HEADING) :]
        client.set_tag(parent_id, NOTE_TAG, f"{_BEST}{escaped(best)}**\n\n{trainings}")
