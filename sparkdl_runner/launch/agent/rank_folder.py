"""A rank's own folder of a run on its host, and the files of it that are kept with the run."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.base.foreign_file import open_regular
from sparkdl_runner.launch.agent.rank_log import RankLog
from sparkdl_runner.launch.wire.messages import REFUSED, FilePart
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.rank_run import artifacts_in, folder_prefix

FILE_PART_BYTES = 256 * 1024
# How much of one file is kept with the run.
MAX_FILE_BYTES = 64 << 20

# A folder that was just made is not locked yet, and so looks abandoned.
ABANDONED_SECONDS = 3600.0


class RankFolder:
    """A folder that was just made, held by a lock that the kernel releases if the process dies.

    An agent may be killed with its executor before it removes the folder. The next rank on the host
    sees that the lock is free, and removes it.

    Args:
        path: The folder, made by ``RunTicket.for_rank``.

    Raises:
        OSError: It is gone.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = _lock(self.path)
        _remove_abandoned(self.path)

    def remove(self) -> None:
        """Removes it with all that is in it, and lets it go. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(path: Path) -> int | None:
    """Locks a folder. Returns the descriptor that holds the lock, or None if that failed."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_abandoned(own: Path) -> None:
    """Removes this user's other folders of this host that no process holds."""
    limit = time.time() - ABANDONED_SECONDS
    for other in own.parent.glob(f"{folder_prefix()}*"):
        with suppress(OSError):  # Another rank of this host may be removing it.
            status = other.lstat()
            if other == own or status.st_uid != os.getuid() or status.st_mtime > limit:
                continue
            if (fd := _lock(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)
                os.close(fd)


def log_sender(
    world: World, log: RankLog, tell: Callable[[FilePart], None]
) -> Callable[[type[FilePart]], None]:
    """Makes a function that sends the new lines of a log. Its argument is the kind of parts.

    Args:
        world: The rank.
        log: Its log.
        tell: Takes the parts.
    """
    sent, sending = 0, threading.Lock()

    def send(kind: type[FilePart]) -> None:
        nonlocal sent
        with sending:
            if log.size_bytes > sent:
                sent = _leave(world, f"logs/rank_{world.rank}", log.path, tell, sent, kind)

    return send


def leave_traces(world: World, folder: Path, tell: Callable[[FilePart], None]) -> None:
    """Sends the traces in a rank's own folder, which are kept with the run, part by part."""
    artifacts = artifacts_in(folder)
    for path in sorted(artifacts.rglob("*")):
        if path.is_file() and not path.is_symlink():
            _leave(world, f"traces/{path.relative_to(artifacts).as_posix()}", path, tell)


def _leave(
    world: World,
    name: str,
    path: Path,
    tell: Callable[[FilePart], None],
    sent: int = 0,
    kind: type[FilePart] = FilePart,
) -> int:
    """Sends what comes after ``sent`` bytes, in parts that end with a line. Returns their end."""
    # If the file or its disk is gone, what was read so far is kept.
    with suppress(OSError), os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb") as file:
        while sent < MAX_FILE_BYTES:
            file.seek(sent)
            data = file.read(min(FILE_PART_BYTES, MAX_FILE_BYTES - sent))
            part = kind(name, data[: data.rfind(b"\n") + 1] or data, sent == 0)
            if part.data:
                tell(part)
            if not part.data or part.number == REFUSED:
                return sent
            sent += len(part.data)
        if kind is FilePart and os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            where = f"... cut here: all of it is in {path} on host {world.place}"
            tell(FilePart(name, f"\n{where}\n".encode(), False))
    return sent
