"""Keeps undelivered entries beside the checkpoints, so that they survive the loss of the driver.

On the driver's own disk the spool has it as well, and delivers it if the driver lives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sparkdl_runner.base.foreign_name import is_run_id
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.entries import Entry, is_entry
from sparkdl_runner.tracking.run import entries_file
from sparkdl_runner.tracking.run.journal import Journal, earlier_values
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.spool import Spool

FOLDER = "undelivered"
_SUFFIX = ".jsonl"
CHECKPOINT_TAG = "sparkdl_runner.checkpoint"
# A server that is away for less is not worth a file.
AFTER_SECONDS = AGAIN_SECONDS = 60.0


class Undelivered:
    """One run's entries, in a file beside its checkpoints.

    Args:
        run_id: The run.
        url: Where an earlier driver has left its file, if it has.
    """

    def __init__(self, run_id: str, url: str = "") -> None:
        self._run_id = run_id
        self.url = url
        """The file's URL; empty if there is none."""

    def keep(self, entries: Sequence[Entry], checkpoint: str | None) -> None:
        """Writes the file anew, if there is a place for it.

        Args:
            entries: All that wait.
            checkpoint: The newest checkpoint's URL; None if there is none yet.
        """
        if not entries or not checkpoint:
            return
        url = f"{folder_of(checkpoint)}/{FOLDER}/{self._run_id}{_SUFFIX}"
        # If the driver cannot write here, each checkpoint still holds the ranks' metrics before it.
        with suppress(Exception):
            entries_file.write(url, _lines(entries))
            self.url = url

    def forget(self) -> None:
        """Deletes the file: MLflow has it all."""
        if self.url:
            delete(self.url)
            self.url = ""


def folder_of(checkpoint: str) -> str:
    """The folder of a training's checkpoints, of the URL of one of them."""
    return checkpoint.rpartition("/step-")[0]


def of_run(opened: Opened) -> tuple[str, list[Entry]]:
    """The entries that an earlier driver left beside the checkpoints, and their place."""
    checkpoint = opened.run.data.tags.get(CHECKPOINT_TAG)
    if not checkpoint:
        return "", []
    url = f"{folder_of(checkpoint)}/{FOLDER}/{opened.run.info.run_id}{_SUFFIX}"
    try:
        return url, read(url)
    except Exception:  # Mostly there is none. Storages raise errors of many kinds.
        return "", []


def spool_left(opened: Opened, spool: Spool, redact: Redactor) -> str:
    """Spools what an earlier driver, on another host, could not deliver. Returns where it is.

    MLflow may have taken some of it after all, and drops that: a point that it knows is none.
    """
    if len(spool) or not opened.first_attempt:
        return ""
    url, entries = of_run(opened)
    if entries:
        spool.put(not_known(opened, entries, redact))
    return url if entries else ""


def not_known(opened: Opened, entries: list[Entry], redact: Redactor) -> list[Entry]:
    """Leaves out the metrics of steps that MLflow has, and parameters that are set.

    Raises:
        LaunchError: MLflow does not answer.
    """
    # Entries that wait make it look at what the run's metrics are.
    params, last_steps, _ = earlier_values(opened, [["tag", "", ""]])
    journal = Journal(params, last_steps, redact)
    journal.begin_attempt(0)
    return [
        entry for entry in journal.admit(entries) if entry[0] != "param" or entry[1] not in params
    ]


def files_in(folder: str) -> dict[str, str]:
    """The files that trainings have left in a folder of checkpoints: URLs by run id.

    Raises:
        OSError: The storage does not answer.
    """
    from pyarrow import fs

    filesystem, path = _open(f"{folder.rstrip('/')}/{FOLDER}")
    files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    names = sorted(file.base_name for file in files if file.base_name.endswith(_SUFFIX))
    return {
        run_id: f"{folder.rstrip('/')}/{FOLDER}/{run_id}{_SUFFIX}"
        for run_id in (name.removesuffix(_SUFFIX) for name in names)
        if is_run_id(run_id)
    }


def read(url: str) -> list[Entry]:
    """The entries of a file; a line that is none ends them.

    Raises:
        OSError: It is not there, or cannot be read.
        ForeignFileError: It is too large.
    """
    entries: list[Entry] = []
    for line in entries_file.read(url).splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not is_entry(entry):
            break
        entries.append(entry)
    return entries


def delete(url: str) -> None:
    """Deletes a file, if that is possible."""
    with suppress(Exception):
        entries_file.delete(url)


def _lines(entries: Sequence[Entry]) -> bytes:
    """The entries' lines, the oldest first, as far as a reader takes them."""
    lines, size = [], 0
    for entry in entries:
        line = f"{json.dumps(entry)}\n".encode()
        size += len(line)
        if size > entries_file.MOST_BYTES:
            break
        lines.append(line)
    return b"".join(lines)


def _open(url: str) -> tuple[Any, str]:
    from sparkdl_runner.base.filesystem import (
        open_filesystem,  # It needs pyarrow, which a run may not.
    )

    return open_filesystem(url)
