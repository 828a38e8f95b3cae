"""Whether a file is still the one that was there when the converter was made.

Name, size and time are easily made equal, and so is a CRC-32, by somebody who wants to. What an
ordinary user of a host cannot choose is who owns a file that they made, and the time of its last
change of any kind (``st_ctime``): the kernel writes both. So on the host where the converter was
made, a local file whose owner and time are as they were is the same file, and none of it has to be
read. One that was touched is looked into if this user or root did it; one that another user put
there is refused, whatever is in it.

On other hosts, and on remote storage, there are sizes, times and checksums. They show what changed
by mistake.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.data.dataset.checksum import crc32_of
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import ChangedFileError, DatasetError
from sparkdl_runner.foreign_file import open_regular

_TAIL_BYTES = 64 * 1024
_AGAIN = (
    "Convert the DataFrame again, or restore the file. If the change is fine, make the converter "
    "again, by make_spark_converter on the driver."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalFiles:
    """What the kernel of one host said of the files of a data set."""

    host: str
    """This boot of the host, and the user namespace, in which user ids mean what they mean."""
    owners: npt.NDArray[np.int64]
    """``[files]``, user ids."""
    changed_ns: npt.NDArray[np.int64]
    """``[files]``, the last change of content, rights, owner or name."""

    @classmethod
    def look_at(cls, directory: str, manifest: Manifest) -> LocalFiles | None:
        """Looks at the files of a manifest; None if that is not to be had here."""
        host = _this_host()
        try:
            found = [os.stat(f"{directory}/{file.path}") for file in manifest.files]
        except OSError:
            return None
        if host is None:
            return None
        return cls(
            host=host,
            owners=np.array([one.st_uid for one in found], dtype=np.int64),
            changed_ns=np.array([one.st_ctime_ns for one in found], dtype=np.int64),
        )

    def is_here(self) -> bool:
        """Whether this process can compare owners and times with these."""
        return self.host == _this_host()

    def is_same(self, index: int, found: os.stat_result) -> bool:
        """Whether the file of this number is as it was."""
        as_it_was = (int(self.owners[index]), int(self.changed_ns[index]))
        return as_it_was == _owner_and_time(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Converted:
    """What a converter knows of the data set that it was made of, and takes along to the ranks."""

    manifest_digest: str
    """``Manifest.digest``."""
    local: LocalFiles | None
    """None for what is not on a local file system."""
    remote_ns: tuple[int | None, ...] | None
    """When each object on remote storage was written, as far as that is known; else None."""

    @classmethod
    def of(
        cls,
        filesystem: pa.fs.FileSystem,
        directory: str,
        manifest: Manifest,
        found: Manifest | None = None,
    ) -> Converted:
        """Notes what is there now.

        Args:
            filesystem: Where it is.
            directory: The data set's directory in ``filesystem``.
            manifest: The one that is there.
            found: The same with the times of the files as they are, where they are a copy.
        """
        is_local = isinstance(filesystem, pa.fs.LocalFileSystem)
        times = tuple(file.modified_ns for file in (found or manifest).files)
        return cls(
            manifest_digest=manifest.digest,
            local=LocalFiles.look_at(directory.rstrip("/"), manifest) if is_local else None,
            remote_ns=None if is_local else times,
        )


def open_file(
    filesystem: pa.fs.FileSystem, path: str
) -> tuple[pa.NativeFile, os.stat_result | None]:
    """Opens a file, and says what the kernel knows of the one that was opened.

    The path may name another one a moment later.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe or some such.
    """
    if not isinstance(filesystem, pa.fs.LocalFileSystem):
        return filesystem.open_input_file(path), None
    descriptor = open_regular(path)
    try:
        return filesystem.open_input_file(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    finally:
        os.close(descriptor)


class SameFiles:
    """Holds files, as they are opened, against a manifest and what its converter knows.

    Args:
        manifest: Of the data set.
        converted: What the converter knows; None where there is no more than the manifest.
    """

    def __init__(self, manifest: Manifest, converted: Converted | None = None) -> None:
        self.converted = converted
        self._files = manifest.files
        noted = None if converted is None else converted.local
        self._noted = noted if noted is not None and noted.is_here() else None
        self._looked_into: dict[int, tuple[int, int]] = {}

    def is_touched(self, index: int, found: os.stat_result) -> bool:
        """Whether a local file has changed, its rights included, or nobody knows it."""
        if self._looked_into.get(index) == _owner_and_time(found):
            return False
        if self._noted is not None:
            return not self._noted.is_same(index, found)
        return self._files[index].modified_ns != found.st_mtime_ns

    def check(
        self, stream: Any, found: os.stat_result | None, path: str, index: int
    ) -> bytes | None:
        """Checks that an open file is the one that the manifest lists.

        Args:
            stream: The file.
            found: What ``open_file`` said of it.
            path: Its path, for messages.
            index: Its number in the manifest.

        Returns:
            The end of the file, from its Parquet footer on; None if there was no need to read it.

        Raises:
            ChangedFileError: It is another file, or has other content.
        """
        file = self._files[index]
        touched = found if found is not None and self.is_touched(index, found) else None
        if self._noted is not None:
            if touched is None:
                return None
            _check_owner(touched, path)
        tail, footer_crc32 = footer_bytes(stream, path)
        what, same = "Parquet footer", footer_crc32 == file.footer_crc32
        if same and touched is not None:
            if file.crc32 is not None:
                stream.seek(0)
                what, same = "content", crc32_of(stream) == file.crc32
            elif self._noted is not None and file.modified_ns is not None:
                # No checksum is known. Where only its rights were changed, it keeps this time.
                what, same = "time of change", touched.st_mtime_ns == file.modified_ns
        if not same:
            raise ChangedFileError(
                f"{path} was changed after the conversion: its {what} is not the one that the "
                f"manifest knows. {_AGAIN}"
            )
        if touched is not None:
            self._looked_into[index] = _owner_and_time(touched)
        return tail


def _owner_and_time(found: os.stat_result) -> tuple[int, int]:
    return found.st_uid, found.st_ctime_ns


def _check_owner(found: os.stat_result, path: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ChangedFileError(
            f"{path} is not the file that the converter was made of: user "
            f"{_user_name(found.st_uid)} put it there, or changed it, since, and it is not read, "
            f"whatever it holds. {_AGAIN}"
        )


def footer_bytes(stream: Any, path: str) -> tuple[bytes, int]:
    """The end of a Parquet file, from its footer on, and the footer's CRC-32.

    A Parquet file ends in the footer, the footer's length (4 bytes, little endian) and ``PAR1``:
    https://parquet.apache.org/docs/file-format/
    """
    size = stream.size()
    start = max(0, size - _TAIL_BYTES)
    stream.seek(start)
    tail = stream.read()
    footer_size = int.from_bytes(tail[-8:-4], "little") + 8
    if size < 12 or tail[-4:] != b"PAR1" or footer_size > size:
        raise DatasetError(
            f"{path} ({size:,} bytes) does not end as a Parquet file does: it was cut short, or "
            "is something else."
        )
    if footer_size > len(tail):
        stream.seek(size - footer_size)
        tail = stream.read()
    tail = tail[-footer_size:]
    return tail, zlib.crc32(tail)


@cache
def _this_host() -> str | None:
    """This boot of this host and this process's user namespace; None where nobody says."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/user')}"
    except OSError:
        return None


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return str(uid)
