"""Marks directories with their maker, so that leftovers of a crash can be removed safely.

Every process that converts makes one directory below the parent cache directory, with a marker
file written first. The directory goes at exit; if the process is killed, a later sweep finds the
marker and removes the directory once it is certain that its maker is gone. What has no marker, or
a marker that names another directory, was not made here and is never touched.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pyarrow import fs

from sparkdl_runner.base.filesystem import (
    StorageOptions,
    join_url,
    open_filesystem,
    redact,
)
from sparkdl_runner.base.foreign_file import build, parse_json, read_small
from sparkdl_runner.data.dataset.held_folder import HeldFolder, delete_folder, held
from sparkdl_runner.data.dataset.lease import HeldLease, leases_of
from sparkdl_runner.data.dataset.place import (
    PARENT_CACHE_DIR_URL_CONF,
    CachePlace,
    directory_url,
    running_session,
)
from sparkdl_runner.data.errors import ConversionError
from sparkdl_runner.rank.process_identity import ProcessIdentity, this_process

MARKER_NAME = "_sparkdl_runner.json"
PREFIX = "sparkdl_runner-"
_MOST_MARKER_BYTES = 64 << 10

_log = logging.getLogger(__name__)
_process_directories: dict[tuple[str, int], str] = {}
_process_directories_lock = threading.Lock()
_conversions = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Owner(ProcessIdentity):
    """The process that made a directory."""

    directory: str
    """The name of the directory that the marker belongs to."""
    application_id: str
    created_unix_seconds: float

    @classmethod
    def this_process(cls, directory: str, application_id: str) -> Owner:
        """Describes the calling process as the owner of ``directory``."""
        return cls(
            directory=directory,
            application_id=application_id,
            created_unix_seconds=time.time(),
            **asdict(this_process()),
        )

    @classmethod
    def of_directory(cls, filesystem: fs.FileSystem, directory: str) -> Owner:
        """Reads the marker in a directory.

        Raises:
            OSError: There is none, or it cannot be read.
            json.JSONDecodeError: It is torn.
            ForeignFileError: It is not a marker of ours.
        """
        text = read_small(filesystem, f"{directory}/{MARKER_NAME}", _MOST_MARKER_BYTES)
        return build(cls, parse_json(text))

    def has_left(self, older_than_seconds: float | None) -> bool:
        """Whether its directory may go: it has ended, or ran elsewhere and is older than that."""
        if self.is_on_this_machine():
            return self.is_gone()
        age = time.time() - self.created_unix_seconds
        return older_than_seconds is not None and age > older_than_seconds


def process_directory(
    parent_url: str,
    application_id: str,
    storage_options: StorageOptions | None = None,
    *,
    private: bool = False,
) -> str:
    """This process's own directory below the parent: made on first use, deleted at exit.

    On first use, also removes what processes that have ended left there.

    Args:
        parent_url: Made as well if it is not there.
        application_id: Goes into the name.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.
        private: Whether a local one is for this user alone: mode 0700.

    Raises:
        OSError: The parent cannot be written.
    """
    key = (parent_url, os.getpid())
    with _process_directories_lock:
        if key not in _process_directories:
            _process_directories[key] = make_marked_directory(
                parent_url, application_id, storage_options, private=private
            )
            for removed in sweep_leftovers(parent_url, storage_options=storage_options):
                _log.info("Removed %s, left by a process that has ended.", removed)
        return _process_directories[key]


def conversion_directory(place: CachePlace) -> str:
    """The URL of a directory for all that one conversion writes, to be deleted with it.

    Raises:
        ConversionError: Nothing can be written there.
    """
    try:
        own_url = process_directory(
            place.url, place.application_id, place.storage_options, private=place.private
        )
    except OSError as error:
        raise ConversionError(
            f"Cannot write to the cache directory {redact(place.url)} ({error}): make it "
            f"writable, or set {PARENT_CACHE_DIR_URL_CONF} to another place."
        ) from error
    return join_url(own_url, f"conversion-{next(_conversions)}")


def timed_name(application_id: str) -> str:
    """A new name for a directory, by which a person can tell whose it is."""
    return f"{time.strftime('%Y%m%d%H%M%S')}-appid-{application_id}-{uuid.uuid4()}"


def make_marked_directory(
    parent_url: str,
    application_id: str,
    storage_options: StorageOptions | None = None,
    *,
    private: bool = False,
) -> str:
    """Makes a directory that belongs to this process; the arguments of ``process_directory``."""
    name = f"{PREFIX}{timed_name(application_id)}"
    url = join_url(parent_url, name)
    filesystem, path = open_filesystem(url, storage_options)
    owner = Owner.this_process(name, application_id)
    atexit.register(_delete_at_exit, url, storage_options, os.getpid())
    if private and isinstance(filesystem, fs.LocalFileSystem):
        os.makedirs(path, mode=0o700)
    else:
        filesystem.create_dir(path, recursive=True)
    try:
        HeldLease(url, storage_options)
        with held(filesystem, path) as made:
            made.write(MARKER_NAME, json.dumps(asdict(owner)).encode())
    except BaseException:
        delete_folder(filesystem, path)  # Without a marker, no sweep would ever remove it.
        raise
    return url


def delete_directory(url: str, storage_options: StorageOptions | None = None) -> None:
    """Deletes a directory and what it holds; one that is not there is fine."""
    filesystem, path = open_filesystem(url, storage_options)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        delete_folder(filesystem, path)


def deleter(url: str, storage_options: StorageOptions | None) -> Callable[[], None]:
    """Returns a function that deletes a directory, but only in this process, not in a fork."""
    pid = os.getpid()

    def delete() -> None:
        if os.getpid() == pid:
            delete_directory(url, storage_options)

    return delete


def sweep_leftovers(
    parent_url: str,
    *,
    older_than_seconds: float | None = None,
    storage_options: StorageOptions | None = None,
) -> list[str]:
    """Removes directories that processes which are gone left in a parent cache directory.

    A directory goes only if it is this user's, where the filesystem says whose it is, and carries
    this package's marker with its own name, and its maker ran
    on this machine and has ended, or on another machine and has not renewed its lease for a day.
    With ``older_than_seconds`` directories of other machines go too once they are older than that,
    in use or not, so choose more than the longest run takes.

    Args:
        parent_url: The parent cache directory; an absolute path will do where all of Spark is on
            this host.
        older_than_seconds: ``None`` goes by leases alone for what was made on other machines.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.

    Returns:
        The URLs of the directories that were removed.
    """
    if older_than_seconds is not None and older_than_seconds <= 0:
        raise ValueError(f"older_than_seconds must be above 0, not {older_than_seconds}.")
    parent_url = directory_url(parent_url, running_session())
    filesystem, parent = open_filesystem(parent_url, storage_options)
    removed = []
    for entry in filesystem.get_file_info(fs.FileSelector(parent, allow_not_found=True)):
        if entry.type != fs.FileType.Directory or not entry.base_name.startswith(PREFIX):
            continue
        try:
            with held(filesystem, entry.path) as folder:
                if not _is_leftover(folder, entry.base_name, older_than_seconds):
                    continue
                try:
                    folder.delete()
                except OSError as error:
                    _log.warning("Cannot remove the leftover %s: %s", entry.base_name, error)
                    continue
        except OSError:
            continue  # It has gone, or is a link.
        removed.append(join_url(parent_url, entry.base_name))
    return removed


def _is_leftover(folder: HeldFolder, name: str, older_than_seconds: float | None) -> bool:
    """Whether a folder is this user's, was made under this name, and is used by nobody."""
    try:
        owner = Owner.of_directory(folder.filesystem, folder.path)
    except (OSError, ValueError):
        return False
    if owner.directory != name or not folder.is_ours:
        return False
    return owner.has_left(older_than_seconds) or _is_unseen(owner, folder)


def _is_unseen(owner: Owner, folder: HeldFolder) -> bool:
    """Whether its maker ran on another machine, and has not renewed its lease in time."""
    if owner.is_on_this_machine():
        return False
    leases = leases_of(folder.filesystem, folder.path)
    return bool(leases) and all(lease.is_over for lease in leases)


def delete_quietly(url: str, storage_options: StorageOptions | None) -> None:
    """Deletes a directory; a failure is a warning."""
    try:
        delete_directory(url, storage_options)
    except Exception as error:
        _log.warning("Cannot delete %s: %s", redact(url), error)


def _delete_at_exit(url: str, storage_options: StorageOptions | None, pid: int) -> None:
    if os.getpid() == pid:  # A forked process inherits the handler, but not the directory.
        delete_quietly(url, storage_options)
