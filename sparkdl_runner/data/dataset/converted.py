"""Facts about a converter's files, by which ranks check that these are still the same.

Name, size and time are easily forged, and so is a CRC-32. What an ordinary user of a host cannot
choose is the owner of a file that they made, and the time of its last change of any kind
(``st_ctime``): the kernel writes both. So on the host where the converter was made, a local file
whose owner and time are unchanged is the same file.

On other hosts, and on remote storage, there are sizes, times and checksums. Those show accidental
changes only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, join_url, open_filesystem, redact
from sparkdl_runner.base.processes import HAS_PROC
from sparkdl_runner.base.this_host import boot_id, namespace
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.files import Files, pack, unpack
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import DatasetError, NoManifestError


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalFiles:
    """Owners and change times of a data set's files, from the kernel of one host."""

    host: str
    """This boot of the host, and the user namespace, in which user ids mean what they mean."""
    owners: npt.NDArray[np.int64]
    """``[files]``, user ids."""
    changed_ns: npt.NDArray[np.int64]
    """``[files]``, the last change of content, rights, owner or name."""

    @classmethod
    def of(cls, dataset: Dataset) -> LocalFiles | None:
        """Looks up the files of a data set; None if that is not possible."""
        host = _this_host()
        try:
            owners_and_times = [owner_and_time(os.stat(path)) for path in dataset.paths()]
        except OSError:
            return None
        if host is None:
            return None
        return cls(
            host=host,
            owners=np.array([owner for owner, _ in owners_and_times], dtype=np.int64),
            changed_ns=np.array([changed_ns for _, changed_ns in owners_and_times], dtype=np.int64),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = len(self.owners), pack(self.owners), pack(self.changed_ns)
        return _local_files, (self.host, *numbers)

    def is_here(self) -> bool:
        """Whether this process can compare owners and times with these."""
        return self.host == _this_host()

    def is_same(self, index: int, found: os.stat_result) -> bool:
        """Whether the file of this number has its owner and time still."""
        return (int(self.owners[index]), int(self.changed_ns[index])) == owner_and_time(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Converted:
    """Facts about the files of a converter's data set; sent to the ranks."""

    manifest_digest: str
    """``Manifest.digest``."""
    local: LocalFiles | None
    """None for what is not on a local file system."""
    remote_ns: npt.NDArray[np.int64] | None
    """``[files]``, when each object on remote storage was written, -1 where that is not known; None
    for what is local."""

    def __reduce__(self) -> tuple[Any, ...]:
        times = self.remote_ns
        packed = (0, "") if times is None else (len(times), pack(times))
        return _converted, (self.manifest_digest, self.local, *packed)

    @classmethod
    def of(cls, dataset: Dataset, checked: Dataset | None = None) -> Converted:
        """Describes the files as they are now.

        Args:
            dataset: What the ranks will open.
            checked: What ``VerifiedFiles.check_all`` returned for it, where that was called.
        """
        times = Files.of((checked or dataset).manifest.files).numbers("modified_ns")
        return cls(
            manifest_digest=dataset.manifest.digest,
            local=LocalFiles.of(dataset) if dataset.is_local else None,
            remote_ns=None if dataset.is_local else times,
        )


def _local_files(host: str, count: int, owners: str, changed_ns: str) -> LocalFiles:
    return LocalFiles(
        host=host,
        owners=unpack(owners, np.int64, count),
        changed_ns=unpack(changed_ns, np.int64, count),
    )


def _converted(digest: str, local: LocalFiles | None, count: int, remote_ns: str) -> Converted:
    times = unpack(remote_ns, np.int64, count) if remote_ns else None
    return Converted(manifest_digest=digest, local=local, remote_ns=times)


def open_conversion(
    url: str,
    storage_options: StorageOptions | None,
    converted: Converted | None,
    file_urls: Sequence[str] | None,
) -> Dataset:
    """Opens a directory from this process, if it is what its converter was made of.

    Args:
        url: The directory.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.
        converted: What the converter remembers of it, if it does.
        file_urls: Else the files that it knows; none of them where it knows nothing.

    Raises:
        NoManifestError: The files were deleted.
        DatasetError: The manifest is damaged, or of another conversion that took its place.
    """
    filesystem, directory = open_filesystem(url, storage_options)
    try:
        manifest = Manifest.read(filesystem, directory)
    except NoManifestError:
        if filesystem.get_file_info(directory).type != fs.FileType.NotFound:
            raise
    else:
        _check_same(manifest, url, converted, file_urls)
        return Dataset(manifest, filesystem, directory)
    raise NoManifestError(
        f"The conversion {redact(url)} is gone: it was deleted, the process that made it has "
        "ended, or this machine does not see that directory."
    )


def _check_same(
    manifest: Manifest, url: str, converted: Converted | None, file_urls: Sequence[str] | None
) -> None:
    """Raises a DatasetError if another conversion took its place: all ranks read the same."""
    if converted is not None:
        same = manifest.digest == converted.manifest_digest
    else:
        there = [join_url(url, file.path) for file in manifest.files]
        same = not file_urls or there == file_urls
    if not same:
        raise DatasetError(
            f"The conversion {redact(url)} was overwritten by another one after this converter was "
            f"made: make it again, by make_spark_converter({redact(url)!r}) on the driver, and "
            "start the training again."
        )


def owner_and_time(found: os.stat_result) -> tuple[int, int]:
    """The owner and the time of the last change, which only the kernel sets."""
    return found.st_uid, found.st_ctime_ns


@cache
def _this_host() -> str | None:
    """This boot of this host and this process's user namespace; None if unknown."""
    booted, users = boot_id(), namespace("user")
    if booted and users:
        return f"{booted} {users}"
    # Another host of this name would at most find files touched, and so compare their content.
    return None if HAS_PROC else socket.gethostname()
