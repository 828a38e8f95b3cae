"""A rank's own folder of a run on its host: held while the rank lives, and never left for good."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.tracking.rank_run import folder_prefix

# Between its making and its being held a folder looks abandoned.
ABANDONED_SECONDS = 3600.0


class RankFolder:
    """Holds a folder that was just made, by a lock that the kernel takes back from the dead.

    An agent may be killed with its executor, and then nobody removes its rank's folder. The next
    rank on the host sees by the lock that it is nobody's, and does.

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
    """Locks a folder. Returns what holds the lock; None if somebody else does, or nobody can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_abandoned(own: Path) -> None:
    """Removes this user's other folders of this host that nobody holds any more."""
    limit = time.time() - ABANDONED_SECONDS
    for other in own.parent.glob(f"{folder_prefix()}*"):
        with suppress(OSError):  # Other ranks of this host may be at it, too.
            found = other.lstat()
            if other == own or found.st_uid != os.getuid() or found.st_mtime > limit:
                continue
            if (fd := _lock(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)
                os.close(fd)
