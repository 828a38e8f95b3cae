"""The full log of each rank, on the host where it ran.

Only the last lines travel with an error, and the driver shows no more than it can take; all that a
rank prints is in its file, up to a limit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.rank.world import World

MAX_LOG_BYTES = 1 << 30
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
KEEP_SECONDS = 7 * 24 * 3600


class RankLog:
    """One rank's file, readable by its owner alone.

    Args:
        directory: Where ``rank-R.log`` is made; made as well if need be.
        rank: The rank.
        was_asked_for: Whether it stays when all went well.
    """

    def __init__(self, directory: Path, rank: int, *, was_asked_for: bool = False) -> None:
        self._was_asked_for = was_asked_for
        self.path = directory / f"rank-{rank}.log"
        self.problem: str | None = None
        self.size_bytes = 0
        self._fd = -1
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, _FLAGS, 0o600)
        except OSError as error:
            self.problem = f"the full log could not be written to {self.path}: {error}"

    def write(self, raw: bytes) -> None:
        """Appends what the rank printed. Never raises: a full disk must not end a training."""
        if self._fd < 0:
            return
        if self.size_bytes + len(raw) > MAX_LOG_BYTES:
            self.problem = f"the log {self.path} ends at its limit of {MAX_LOG_BYTES:,} bytes"
            self.close()
            return
        try:
            os.write(self._fd, raw)
        except OSError as error:
            self.problem = f"the log {self.path} ends early: {error}"
            self.close()
            return
        self.size_bytes += len(raw)

    def close(self, *, keep: bool = True) -> None:
        """Closes the file, and removes it unless it is to be kept, or was asked for."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not keep and not self._was_asked_for:
            remove_file_of_run(self.path)


def rank_log(configured: str | None, run: str, world: World) -> RankLog:
    """Opens the log of one rank of one attempt on this host.

    It is below ``configured``; else below the folder whose logs the cluster manager keeps and
    shows (YARN's LOG_DIRS), or below the system's temporary one.

    Args:
        configured: ``RunConfig.log_directory``.
        run: The run's own name.
        world: The rank and its attempt.
    """
    cluster = os.environ.get("LOG_DIRS", "").partition(",")[0]
    try:
        if configured or cluster:
            base = Path(configured or cluster)
        else:
            base = private_folder("sparkdl_runner-logs")
            remove_old_runs(base)
    except OSError:  # A full disk must not keep ranks from starting. Opening the log reports it.
        base = Path(tempfile.gettempdir())
    directory = base / run / f"attempt-{world.attempt}"
    return RankLog(directory, world.rank, was_asked_for=bool(configured))


def remove_file_of_run(path: Path) -> None:
    """Removes a file, and the folders of its attempt and its run once they are empty."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
        path.parent.parent.rmdir()


def remove_old_runs(base: Path, now: float | None = None) -> None:
    """Removes what runs of over a week ago left in a folder of theirs."""
    limit = (time.time() if now is None else now) - KEEP_SECONDS
    with os.scandir(base) as entries:
        runs = list(entries)
    for run in runs:
        try:  # Another rank of this host may be removing it.
            # Ranks wait for this, so look into a run's folder only if it is old itself.
            if run.is_symlink() or run.stat(follow_symlinks=False).st_mtime >= limit:
                continue
            if all(path.lstat().st_mtime < limit for path in Path(run).rglob("*")):
                shutil.rmtree(run, ignore_errors=True)
        except OSError:
            continue
