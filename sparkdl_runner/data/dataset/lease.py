"""Leases: the users of a folder, and the time until which it must not be deleted.

A lease is a small file in the folder's ``_leases``, with the time at which it ends. Its holder
writes it again long before. A holder that was killed, or whose machine is gone, writes nothing
more: its lease ends by itself, and then any machine may delete the folder. Clocks must agree to
within minutes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass

from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, open_filesystem, redact
from sparkdl_runner.base.foreign_file import ForeignFileError, build, parse_json, read_small
from sparkdl_runner.base.private_folder import user_name
from sparkdl_runner.data.dataset.held_folder import held

FOLDER = "_leases"
SECONDS = 24 * 3600.0
"""How long what a process needs only while it runs stays after it was last seen."""

_MOST_BYTES = 64 << 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The content of a lease's file."""

    user: str
    hostname: str
    pid: int
    ends_unix_seconds: float

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return time.time() >= self.ends_unix_seconds


class HeldLease:
    """A lease of this process, which a thread renews as long as the process lives.

    Args:
        folder_url: What is used.
        storage_options: Credentials and such.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, folder_url: str, storage_options: StorageOptions | None = None) -> None:
        self._shown = redact(folder_url)
        self._filesystem, folder = open_filesystem(folder_url, storage_options)
        self._folder = f"{folder}/{FOLDER}"
        self._name = f"{uuid.uuid4()}.json"
        self._filesystem.create_dir(self._folder, recursive=True)
        self._renew()
        self._next = time.monotonic() + SECONDS / 4
        _keep_renewing(self)

    def _renew(self) -> None:
        lease = Lease(
            user=user_name(),
            hostname=socket.gethostname(),
            pid=os.getpid(),
            ends_unix_seconds=time.time() + SECONDS,
        )
        with held(self._filesystem, self._folder) as folder:
            folder.write(self._name, json.dumps(asdict(lease)).encode())

    def renew_if_due(self) -> None:
        """Writes the lease again if a quarter of its time has passed; a failure is a warning."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS / 4
        try:
            self._renew()
        except Exception as error:
            _log.warning("Cannot renew the lease on %s, and try again: %s", self._shown, error)


_held: set[HeldLease] = set()
_renewing: set[int] = set()
"""The processes that have a thread: a fork has none, and holds none of its parent's leases."""
_lock = threading.Lock()


def _keep_renewing(lease: HeldLease) -> None:
    with _lock:
        if os.getpid() not in _renewing:
            _held.clear()
            _renewing.add(os.getpid())
            threading.Thread(target=_renew_all, name="sparkdl-leases", daemon=True).start()
        _held.add(lease)


def _renew_all() -> None:
    while True:
        time.sleep(15)
        for lease in list(_held):
            lease.renew_if_due()


def leases_of(filesystem: fs.FileSystem, folder: str) -> list[Lease]:
    """The leases on a folder, ended ones as well.

    One that cannot be read, as it is being written, counts from the time of its file.
    """
    selector = fs.FileSelector(f"{folder}/{FOLDER}", allow_not_found=True)
    leases = []
    for entry in filesystem.get_file_info(selector):
        if entry.type != fs.FileType.File or not entry.base_name.endswith(".json"):
            continue
        try:
            text = read_small(filesystem, entry.path, _MOST_BYTES)
            leases.append(build(Lease, parse_json(text)))
        except FileNotFoundError:
            continue
        except (OSError, ForeignFileError, json.JSONDecodeError):
            ends = (entry.mtime_ns or 0) / 1e9 + SECONDS
            leases.append(Lease(user="?", hostname="?", pid=0, ends_unix_seconds=ends))
    return leases
