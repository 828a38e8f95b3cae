"""Chooses the folders of the driver's ``sys.path`` that a rank searches for modules, too.

On the rank's host, a folder of the same name may belong to another user. A rank that searched it
would run that user's modules.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkdl_runner.base.databricks import on_databricks
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.this_host import boot_id, namespace


def own_files() -> str:
    """A text that is the same in processes that see the same files; empty if unknown.

    These are the processes of one host, since it was started, and of one mount namespace.
    """
    booted, mounts = boot_id(), namespace("mnt")
    return f"{booted} {mounts}" if booted and mounts else ""


def new_folders(paths: Sequence[str], driver_files: str) -> list[str]:
    """The folders that a rank adds to its search path. It prints which it leaves out, and why.

    Args:
        paths: The driver's.
        driver_files: The driver's ``own_files``. A rank that sees the same files takes all that the
            driver takes.
    """
    new = [path for path in paths if path not in sys.path and os.path.exists(path)]
    # On Databricks a host is one cluster's alone, and the modes of its mounts say nothing.
    if driver_files == (own_files() or None) or on_databricks():
        return new
    faults = {path: fault for path in new if (fault := changeable_by_others(path))}
    for path, fault in faults.items():
        tell(
            f"{path} of the driver's sys.path is not searched for modules on this "
            f"host, where {fault}. Give it and the folders above it to this user or root alone "
            "(chown, chmod go-w), or send its modules with --py-files."
        )
    return [path for path in new if path not in faults]


def changeable_by_others(path: str) -> str | None:
    """What lets others than root and this user change what is at a path; None if they cannot.

    Looks at all folders above it too, and at what links lead to.
    """
    ends = {path, os.path.realpath(path)}
    for place in _ways(path):
        try:
            status = os.lstat(place)
        except OSError as error:
            return f"{place} cannot be looked at ({error.strerror})"
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode):
            continue
        others = stat.S_IWOTH | (0 if _is_owners_own_group(status) else stat.S_IWGRP)
        # In a sticky folder others cannot rename or remove what is not theirs, but add to it.
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & others and not (is_sticky and str(place) not in ends):
            return f"others may write to {place} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _ways(path: str) -> Iterator[Path]:
    """A path, what its links lead to, and all folders above these."""
    seen: set[Path] = set()
    ahead = [Path(path), Path(os.path.realpath(path))]
    while ahead:
        end = ahead.pop()
        for place in (end, *end.parents):
            if place in seen:
                continue
            seen.add(place)
            yield place
            if place.is_symlink():
                ahead.append(Path(os.path.abspath(place.parent / os.readlink(place))))


def _is_owners_own_group(status: os.stat_result) -> bool:
    """Whether a group is root's, or named for the owner and without other members."""
    if status.st_gid == 0:
        return True
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return False
    return group.gr_name == owner and not set(group.gr_mem) - {owner}
