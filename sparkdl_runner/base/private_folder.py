"""A user's own folder below the temporary one, where every user of the host may write."""

from __future__ import annotations

import atexit
import getpass
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_instead: dict[tuple[Path, int], Path] = {}
"""For each folder and process, the replacement of a folder that cannot be trusted."""


def private_folder(name: str, above: Path | None = None) -> Path:
    """Makes ``name`` and this user's name below a folder, for this user's eyes alone.

    Any user may make a folder of that name first. One of another user's, a link, or one that
    others may write to is left alone. Then this process uses a new folder, with a name that nobody
    could know, which goes at exit if it is empty.

    Args:
        name: Says what the folder is for, such as ``"sparkdl_runner-logs"``.
        above: Where to make it; in the temporary folder by default.

    Returns:
        A folder of mode 0700 that belongs to this user.

    Raises:
        OSError: The folder above cannot be written to.
    """
    folder = (above or Path(tempfile.gettempdir())) / f"{name}-{user_name()}"
    if _is_made_private(folder):
        return folder
    key = (folder, os.getpid())
    if key not in _instead or not _is_made_private(_instead[key]):
        _instead[key] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent))
        atexit.register(_remove_if_empty, _instead[key])
    return _instead[key]


def user_name() -> str:
    """This user's name; the number if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _is_made_private(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
        if state.st_uid != os.getuid() or not stat.S_ISDIR(state.st_mode):
            return False
        if state.st_mode & 0o022:  # Others may have put anything there.
            return False
        if state.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError:
        return False
    return True


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
