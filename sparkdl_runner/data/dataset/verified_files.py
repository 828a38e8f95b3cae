"""Opens the files of a data set, each only if it is the one that was converted."""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.base.foreign_file import open_input, open_with_state
from sparkdl_runner.base.open_file import arrow_file
from sparkdl_runner.base.retrying import patiently
from sparkdl_runner.data.dataset.checksum import crc32_of
from sparkdl_runner.data.dataset.converted import Converted, owner_and_time
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.files import Files
from sparkdl_runner.data.dataset.footers import footer_of, in_threads, read_tail, settled_time
from sparkdl_runner.data.errors import ChangedFileError, DatasetError

_AGAIN = (
    "Convert the DataFrame again, or restore the file. If the change is fine, make the converter "
    "again, by make_spark_converter on the driver."
)

# How many files a rank looks at when a loader opens.
_LOCAL_SHARE, _REMOTE_SHARE = 4096, 16


class VerifiedFiles:
    """The files of a data set, compared with its manifest and with what its converter remembers.

    A file whose owner and time of change are as the converter saw them is not read. One that was
    touched is compared if this user or root touched it, and refused if another user did, whatever
    it holds. Without a converter's memory, the manifest alone decides: the file may be a copy.

    Args:
        dataset: The data set.
        converted: What its converter remembers, where there is one.
    """

    def __init__(self, dataset: Dataset, converted: Converted | None = None) -> None:
        self.dataset = dataset
        self._files = Files.of(dataset.manifest.files)
        self._folder = dataset.directory.rstrip("/")
        local = None if converted is None else converted.local
        self._local = local if local is not None and local.is_here() else None
        self._remote_ns = None if converted is None else converted.remote_ns
        self._compared: dict[int, tuple[int, int]] = {}

    @property
    def advice(self) -> str:
        """Advice for a file that is gone or damaged."""
        view = self.dataset.manifest.view
        return "Convert the DataFrame again, or restore the file." if view is None else view.advice

    def path(self, index: int) -> str:
        """The path of the file of this number."""
        return f"{self._folder}/{self._files.path(index)}"

    @property
    def identity(self) -> str:
        """32 hex digits that name these very files, as they are expected to be."""
        digest = hashlib.sha256(self.dataset.manifest.digest.encode())
        if self._remote_ns is not None:
            digest.update(self._remote_ns.tobytes())
        return digest.hexdigest()[:32]

    def written_ns(self, index: int) -> int | None:
        """When the converter's own object was written, if it remembers that."""
        written_ns = -1 if self._remote_ns is None else int(self._remote_ns[index])
        return None if written_ns < 0 else written_ns

    def open(
        self, index: int, *, knows_footer: bool = False, whole: memoryview | None = None
    ) -> tuple[pa.NativeFile, bytes | memoryview | None]:
        """Opens the file of this number.

        Args:
            index: The file.
            knows_footer: Whether its footer is known: a remote file of known time is not read.
            whole: Memory of the file's size, to be filled with it, if all of it is wanted.

        Returns:
            The stream, and the end of the file with its footer; None if there was no need of it.

        Raises:
            OSError: It cannot be opened, or is a folder, a pipe or some such.
            ChangedFileError: It is another file, or has other content.
        """
        path = self.path(index)
        if not self.dataset.is_local:
            stream, state = open_input(self.dataset.filesystem, path), None
        else:
            # The path may name another file a moment later, so ask about the one that was opened.
            descriptor, state = open_with_state(path)
            try:
                stream = arrow_file(descriptor)
            finally:
                os.close(descriptor)
        try:
            if state is None and self._is_same_remote(stream, path, index) and knows_footer:
                return stream, None
            return stream, self._compare(stream, state, path, index, whole)
        except BaseException:
            stream.close()
            raise

    def check_all(self) -> Dataset:
        """Checks that every file is there and unchanged.

        Sizes are compared for all. Only a file that was touched since is read: all of it where it
        is local and the manifest has its CRC-32, and otherwise its footer. On remote storage, a
        file that was written again after the converter saw it is refused.

        Returns:
            The data set, with the times of its files as they are now: checking that one reads no
            file again.

        Raises:
            DatasetError: A file is gone, has another size, or other content.
        """
        manifest, filesystem, directory = self.dataset
        directory = directory.rstrip("/")
        selector = pa.fs.FileSelector(directory, recursive=True, allow_not_found=True)
        prefix = len(directory) + 1
        infos = {info.path[prefix:]: info for info in filesystem.get_file_info(selector)}
        touched: list[int] = []
        times: list[int | None] = []
        for index, file in enumerate(manifest.files):
            path = self.path(index)
            info: Any = infos.get(file.path)
            self._refuse_other(path, index, info)
            times.append(settled_time(info))
            if self.dataset.is_local:
                is_touched = self._is_touched(index, os.stat(path))
            else:
                then = file.modified_ns if self._remote_ns is None else self.written_ns(index)
                is_touched = then is None or info.mtime_ns != then
                if self._remote_ns is not None:
                    _refuse_written_again(path, then, info.mtime_ns)
            if is_touched:
                touched.append(index)
        in_threads(lambda index: self.open(index)[0].close(), touched, 16)
        if not touched:
            return self.dataset
        files = zip(manifest.files, times, strict=True)
        now = tuple(file._replace(modified_ns=time) for file, time in files)
        return self.dataset._replace(manifest=replace(manifest, files=now))

    def check_share(self, rank: int, world_size: int) -> None:
        """Checks that some of the files are there, in each rank others, and lists no folder.

        What ``check_all`` finds is found when a file is first opened. This finds most of it before
        a training begins, in a time that does not depend on the number of files.

        Args:
            rank: This rank.
            world_size: Ranks that share the files.

        Raises:
            DatasetError: A file is gone, has another size or, where it is local, other content.
        """
        share = range(rank, len(self._files), world_size)
        if self.dataset.is_local:
            for index in share[:_LOCAL_SHARE]:
                self._check_local(index)
            return
        paths = [self.path(index) for index in share[:_REMOTE_SHARE]]
        infos = patiently(lambda: self.dataset.filesystem.get_file_info(paths))
        for index, info in zip(share, infos, strict=False):
            self._refuse_other(info.path, index, info)
            _refuse_written_again(info.path, self.written_ns(index), info.mtime_ns)

    def _check_local(self, index: int) -> None:
        path = self.path(index)
        try:
            state = os.stat(path)
        except FileNotFoundError:
            raise self._gone(path) from None
        self._refuse_other_size(path, index, state.st_size)
        if not stat.S_ISREG(state.st_mode) or self._is_touched(index, state):
            self.open(index)[0].close()

    def _refuse_other(self, path: str, index: int, info: Any) -> None:
        if info is None or info.type != pa.fs.FileType.File:
            raise self._gone(path)
        self._refuse_other_size(path, index, info.size)

    def _refuse_other_size(self, path: str, index: int, size: int) -> None:
        expected = self._files.number("size_bytes", index)
        if size != expected:
            raise DatasetError(
                f"{path} has {size:,} bytes and the manifest says {expected:,}: it was cut "
                f"short or replaced after the conversion. {self.advice}"
            )

    def _gone(self, path: str) -> DatasetError:
        return DatasetError(
            f"{path} is gone: the manifest lists {len(self._files)} files and expects all of "
            f"them. {self.advice}"
        )

    def _is_touched(self, index: int, state: os.stat_result) -> bool:
        """Whether a local file, or its permissions, may have changed."""
        if self._compared.get(index) == owner_and_time(state):
            return False
        if self._local is not None:
            return not self._local.is_same(index, state)
        return self._files.number("modified_ns", index) != state.st_mtime_ns

    def _is_same_remote(self, stream: Any, path: str, index: int) -> bool:
        """Refuses an open remote file of another size or time; False if no time is known."""
        self._refuse_other_size(path, index, stream.size())
        then = self.written_ns(index)
        if then is None:
            return False
        now = _written_ns(stream)
        if now is None:
            now = self.dataset.filesystem.get_file_info(path).mtime_ns
        _refuse_written_again(path, then, now)
        return now is not None

    def _compare(
        self,
        stream: Any,
        state: os.stat_result | None,
        path: str,
        index: int,
        whole: memoryview | None,
    ) -> bytes | memoryview | None:
        """Refuses an open file that is not the one that the manifest lists under this number."""
        if state is not None and self._compared.get(index) == owner_and_time(state):
            return None
        touched = state if state is not None and self._is_touched(index, state) else None
        if self._local is not None:
            if touched is None:
                return None
            _refuse_other_owner(touched, path)
        tail = read_tail(stream, path, is_local=state is not None, whole=whole)
        what, expected = "Parquet footer", self._files.number("footer_crc32", index)
        same = zlib.crc32(footer_of(tail, path)) == expected
        if same and touched is not None:
            crc32, modified_ns = (self._files.number(n, index) for n in ("crc32", "modified_ns"))
            if crc32 is not None:
                stream.seek(0)
                what, same = "content", crc32_of(stream) == crc32
            elif self._local is not None and modified_ns is not None:
                # No checksum is known. A file whose permissions alone changed keeps this time.
                what, same = "time of change", touched.st_mtime_ns == modified_ns
        if not same:
            raise ChangedFileError(
                f"{path} was changed after the conversion: its {what} is not the one that the "
                f"manifest knows. {_AGAIN}"
            )
        if state is not None:
            self._compared[index] = owner_and_time(state)
        return tail


def _written_ns(stream: Any) -> int | None:
    """When an open object was written, if the storage said so when it was opened."""
    written = (stream.metadata() or {}).get("Last-Modified")
    if written is None:
        return None
    time = datetime.strptime(written.decode(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return int(time.timestamp()) * 1_000_000_000


def _refuse_written_again(path: str, then: int | None, now: int | None) -> None:
    """Refuses an object that was written in another second.

    Only seconds are compared: a listing may round the time that a look at one object shows.
    """
    if then is None or now is None or then // 1_000_000_000 == now // 1_000_000_000:
        return
    raise ChangedFileError(
        f"{path} was written again {abs(now - then) / 1e9:,.0f} s after the converter's own file, "
        "and nobody could tell whether it holds the same without reading all of it. Convert the "
        "DataFrame again. If the change is fine, make the converter again, by "
        "make_spark_converter on the driver."
    )


def _refuse_other_owner(state: os.stat_result, path: str) -> None:
    if state.st_uid not in (0, os.geteuid()):
        raise ChangedFileError(
            f"{path} is not the file that the converter was made of: user "
            f"{_user_name(state.st_uid)} put it there, or changed it, since, and it is not read, "
            f"whatever it holds. {_AGAIN}"
        )


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return str(uid)
