"""Conversions that stay for other sessions: found by a key, held by leases, deleted after them.

Below the cache directory, each has a folder of its own::

    sparkdl_runner-kept-KEY-RANDOM/_kept.json     who made it, of what
    sparkdl_runner-kept-KEY-RANDOM/_leases/…      who uses it, until when
    sparkdl_runner-kept-KEY-RANDOM/files/…        the files, and their manifest as the commit

Two sessions that convert the same at the same time make two folders, and later ones find either.
Who deletes one first marks it, and then looks for leases; who finds one first takes a lease, and
then looks for the mark. So none is deleted that somebody has just found.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.leftovers import PREFIX, delete_quietly
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest
from sparkdl_runner.data.dataset.place import CachePlace
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.keep.lease import HeldLease, Lease, leases_of
from sparkdl_runner.filesystem import StorageOptions, join_url, open_filesystem, redact
from sparkdl_runner.foreign_file import build, parse_json, read_small
from sparkdl_runner.private_folder import user_name

KEPT_PREFIX = f"{PREFIX}kept-"
FILES = "files"

_ABOUT = "_kept.json"
_DELETING = "_deleting"
_MOST_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class About:
    """The facts of a kept conversion that a listing shows."""

    user: str
    source: str
    """The files and tables that it was made of, in words."""
    created_unix_seconds: float


class Used(NamedTuple):
    """A kept conversion that this process uses, and holds by a lease."""

    url: str
    """The URL of the Parquet files' directory."""
    dataset: Dataset
    checked: Dataset | None
    """The result of ``VerifiedFiles.check_all`` for a conversion that was found."""
    lease: HeldLease


def find_or_make(
    place: CachePlace,
    key: str,
    keep_seconds: float,
    source: str,
    convert: Callable[[str, str], tuple[str, Dataset]],
) -> Used:
    """A kept conversion of this key, or a new one.

    Args:
        place: Where it is kept.
        key: See ``key_of``.
        keep_seconds: How long it stays after its last use.
        source: Of what it is made, in words.
        convert: Writes files and their manifest into the directory of this URL and name; returns
            its URL, and describes them.
    """
    sweep_kept(place.url, place.storage_options)
    found = _find(place, key, keep_seconds)
    if found is not None:
        _log.info("Found %s, which was converted before.", redact(found.url))
        return found
    url = join_url(place.url, f"{KEPT_PREFIX}{key[:32]}-{uuid.uuid4().hex[:8]}")
    filesystem, folder = open_filesystem(url, place.storage_options)
    if place.private and isinstance(filesystem, fs.LocalFileSystem):
        os.makedirs(folder, mode=0o700)
    try:
        shared = not place.private
        held = HeldLease(url, keep_seconds, place.storage_options, shared=shared)
        about = About(user=user_name(), source=source, created_unix_seconds=time.time())
        with filesystem.open_output_stream(f"{folder}/{_ABOUT}") as stream:
            stream.write(json.dumps(asdict(about)).encode())
        files_url, dataset = convert(url, FILES)
    except BaseException:
        delete_quietly(url, place.storage_options)
        raise
    return Used(files_url, dataset, None, held)


def _find(place: CachePlace, key: str, keep_seconds: float) -> Used | None:
    filesystem, parent = open_filesystem(place.url, place.storage_options)
    for folder in _folders(filesystem, parent):
        if not folder.base_name.startswith(f"{KEPT_PREFIX}{key[:32]}-"):
            continue
        url = join_url(place.url, folder.base_name)
        if not _is_committed(filesystem, folder.path):
            continue
        stranger = _stranger(filesystem, folder.path, place.trusted_users)
        if stranger is not None:
            _log.warning("%s is of %s, and is not read.", redact(url), stranger)
            continue
        try:
            shared = not place.private
            held = HeldLease(url, keep_seconds, place.storage_options, shared=shared)
        except OSError as error:
            _log.warning("%s is not used, since no lease can be put there: %s", redact(url), error)
            continue
        try:
            if _is_committed(filesystem, folder.path):
                files = f"{folder.path}/{FILES}"
                dataset = Dataset(Manifest.read(filesystem, files), filesystem, files)
                checked = VerifiedFiles(dataset).check_all()
                return Used(join_url(url, FILES), dataset, checked, held)
        except (OSError, DatasetError) as error:
            _log.warning("%s cannot be used: %s", redact(url), error)
        held.give_back()
    return None


def _folders(filesystem: fs.FileSystem, parent: str) -> Iterator[fs.FileInfo]:
    found = filesystem.get_file_info(fs.FileSelector(parent, allow_not_found=True))
    for entry in sorted(found, key=lambda one: one.base_name):
        if entry.type == fs.FileType.Directory and entry.base_name.startswith(KEPT_PREFIX):
            local = isinstance(filesystem, fs.LocalFileSystem)
            if not (local and Path(entry.path).is_symlink()):
                yield entry


def _is_committed(filesystem: fs.FileSystem, folder: str) -> bool:
    paths = [f"{folder}/{_DELETING}", f"{folder}/{FILES}/{MANIFEST_NAME}"]
    deleting, manifest = filesystem.get_file_info(paths)
    committed: bool = deleting.type == fs.FileType.NotFound and manifest.type == fs.FileType.File
    return committed


def _stranger(filesystem: fs.FileSystem, folder: str, trusted_users: Collection[str]) -> str | None:
    """The other users who could write there, in words; None if there are none.

    Only a local or mounted file system knows owners. On other storage, all who may write to the
    cache directory are trusted.
    """
    if not isinstance(filesystem, fs.LocalFileSystem) or "*" in trusted_users:
        return None
    for path in [Path(folder), *Path(folder, FILES).rglob("*"), Path(folder, FILES)]:
        try:
            found, owner = path.lstat(), path.owner()
        except (OSError, KeyError):
            return f"an unknown user ({path.name})"
        if found.st_uid not in (0, os.geteuid()) and owner not in trusted_users:
            return f"user {owner}, who is none of sparkdl_runner.converter.trustedUsers"
        if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
            return f"whoever likes, since all may write to {path.name}"
    return None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A kept conversion, as a person sees it."""

    url: str
    about: About | None
    rows: int | None
    """None if it has not been written to its end."""
    size_bytes: int | None
    leases: list[Lease]

    @property
    def users(self) -> list[Lease]:
        """The leases that have not ended."""
        return [lease for lease in self.leases if not lease.is_over]


def list_kept(url: str, storage_options: StorageOptions | None = None) -> list[Kept]:
    """All kept conversions in a cache directory."""
    filesystem, parent = open_filesystem(url, storage_options)
    return [_look_at(filesystem, url, folder) for folder in _folders(filesystem, parent)]


def _look_at(filesystem: fs.FileSystem, parent_url: str, folder: fs.FileInfo) -> Kept:
    about, rows, size_bytes = None, None, None
    try:
        text = read_small(filesystem, f"{folder.path}/{_ABOUT}", _MOST_BYTES)
        about = build(About, parse_json(text))
    except (OSError, ValueError):
        pass  # It is being made, or deleted.
    try:
        manifest = Manifest.read(filesystem, f"{folder.path}/{FILES}")
        rows, size_bytes = manifest.rows, sum(file.size_bytes for file in manifest.files)
    except (OSError, DatasetError):
        pass
    return Kept(
        url=join_url(parent_url, folder.base_name),
        about=about,
        rows=rows,
        size_bytes=size_bytes,
        leases=leases_of(filesystem, folder.path),
    )


def sweep_kept(url: str, storage_options: StorageOptions | None = None) -> list[str]:
    """Deletes the kept conversions whose leases have all ended; returns their URLs."""
    filesystem, parent = open_filesystem(url, storage_options)
    found = [join_url(url, folder.base_name) for folder in _folders(filesystem, parent)]
    return [one for one in found if delete_kept(one, storage_options)]


def delete_kept(
    url: str, storage_options: StorageOptions | None = None, *, in_use: bool = False
) -> bool:
    """Deletes a kept conversion if it has leases, and all of them have ended.

    Args:
        url: Its folder.
        storage_options: Credentials and such.
        in_use: Whether it is deleted in any case.

    Returns:
        Whether it was deleted.
    """
    filesystem, folder = open_filesystem(url, storage_options)

    def is_free() -> bool:
        leases = leases_of(filesystem, folder)
        # Without any lease, it is being made at this moment.
        return in_use or (bool(leases) and all(lease.is_over for lease in leases))

    if not is_free():
        return False
    try:
        mark = f"{folder}/{_DELETING}"
        with filesystem.open_output_stream(mark) as stream:
            stream.write(b"")
        if not is_free():
            filesystem.delete_file(mark)
            return False
        filesystem.delete_dir(folder)
    except OSError as error:
        _log.warning("Cannot delete %s: %s", redact(url), error)
        return False
    return True
