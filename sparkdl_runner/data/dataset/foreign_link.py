"""Refuses a link that another user made, and that leads out of a data set's folder.

By such a link, another user could have a reader read a file that this user may not read.
"""

from __future__ import annotations

import functools
import os
import stat

from sparkdl_runner.base.filesystem import is_far
from sparkdl_runner.base.open_file import real_path
from sparkdl_runner.data.errors import DatasetError

_MOST_STEPS = 1000
# The kernel shows it for an owner that it does not know.
_NOBODY = 65534


def refuse_foreign_link(descriptor: int, folder: str, path: str) -> None:
    """Refuses an open file outside of a folder, if a link of another user's led there.

    Links that this user or root made are followed, as Spark follows all, and so are those of mounts
    in user space, where owners say nothing.

    Args:
        descriptor: The open file.
        folder: The data set's.
        path: The file's, relative to the folder.

    Raises:
        DatasetError: A link of another user's is on the way.
    """
    root = _real(folder)
    opened = real_path(descriptor, f"{folder}/{path}")
    if opened.startswith(f"{root}/") or is_far(root):
        return
    link = _link_of_another(root, path)
    if link is not None:
        raise DatasetError(
            f"{folder}/{path} leads out of its folder by {link}, a link that another user made "
            f"(uid {os.lstat(link).st_uid}). Have the file itself put there; or, if you trust the "
            "link, pass a DataFrame of Spark's instead of the path."
        )


@functools.lru_cache(maxsize=64)
def _real(folder: str) -> str:
    return os.path.realpath(folder).rstrip("/")


def _link_of_another(place: str, path: str) -> str | None:
    """The first link on the way that neither this user nor root made."""
    ahead = path.split("/")
    for _ in range(_MOST_STEPS):
        if not ahead:
            return None
        step = ahead.pop(0)
        if step == "..":
            place = os.path.dirname(place)
            continue
        below = os.path.join(place, step)
        state = os.lstat(below)
        if not stat.S_ISLNK(state.st_mode):
            place = below
            continue
        if state.st_uid not in (0, os.geteuid(), _NOBODY):
            return below
        target = os.readlink(below)
        place = "/" if target.startswith("/") else place
        ahead = [name for name in target.split("/") if name not in ("", ".")] + ahead
    return None
