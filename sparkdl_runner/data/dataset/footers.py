"""Reads the footers of Parquet files: where their parts are, and what their statistics say."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import (
    ForeignFileError,
    IrregularFileError,
    open_input,
    open_with_state,
    read_into,
)
from sparkdl_runner.data.dataset.checksum import crc32_from_sidecar
from sparkdl_runner.data.dataset.files import FileInfo, Files, unpack
from sparkdl_runner.data.dataset.foreign_link import refuse_foreign_link
from sparkdl_runner.data.dataset.held_folder import held
from sparkdl_runner.data.dataset.legacy_calendar import refuse_legacy_calendar
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.arrow_schema import without_arrow_schema
from sparkdl_runner.data.parquet.footer import WITHOUT_KEYS, columns_of, parsed_footer
from sparkdl_runner.data.parquet.leaves import Columns
from sparkdl_runner.data.parquet.row_groups import RowGroupFacts, may_be_infinite

FOOTERS_NAME = "_footers.bin"
"""The underscore makes Spark, Arrow and petastorm pass over it when they list a directory."""
_SIZE_BYTES, _MOST_BYTES = 8, 64 << 20

_TAIL_BYTES = 64 * 1024
_MOST_TOGETHER = 64

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(kw_only=True)
class Footers:
    """What is kept in memory of the footers of some files; the whole is large."""

    files: list[Files] = field(default_factory=list)
    """Of each slice."""
    schemas: list[tuple[pa.Schema, str]] = field(default_factory=list)
    """Each schema that is not that of the file before, and the path of the first that has it."""
    facts: RowGroupFacts = field(default_factory=RowGroupFacts)
    may_be_infinite: set[str] = field(default_factory=set)
    """As ``may_be_infinite`` says, of files that were just written."""
    page_rows: int = 0
    """The most that ``page_rows_of`` says."""
    packed: list[bytes] = field(default_factory=list)
    """Each as ``unpack_footer`` takes it, where somebody asked for it."""

    def extend(self, other: Footers) -> None:
        """Adds those of further files."""
        self.files += other.files
        self.schemas += other.schemas
        self.facts.extend(other.facts)
        self.may_be_infinite |= other.may_be_infinite
        self.page_rows = max(self.page_rows, other.page_rows)
        self.packed += other.packed


def footer_bytes(stream: Any, path: str, *, is_local: bool = False) -> bytes:
    """The end of a Parquet file, from its footer on."""
    return bytes(footer_of(read_tail(stream, path, is_local=is_local), path))


def read_tail(
    stream: Any, path: str, *, is_local: bool = False, whole: memoryview | None = None
) -> bytes | memoryview:
    """The end of a Parquet file: its footer, and what comes with it in one request.

    Args:
        stream: The open file.
        path: For messages.
        is_local: Whether to ask for the length first, and then for no more than the footer. Remote
            storage is asked once, for more than most footers have.
        whole: Where to put the file, as large as that, if all of it is to be read.
    """
    size = stream.size()
    tail: bytes | memoryview
    if whole is not None:
        tail = whole[: read_into(stream, 0, whole)]
    else:
        tail = stream.read_at(size, max(0, size - (12 if is_local else _TAIL_BYTES)))
    needed = _footer_size(tail, size, path)
    return tail if needed <= len(tail) else stream.read_at(needed, size - needed)


def footer_of(tail: bytes | memoryview, path: str) -> bytes | memoryview:
    """The footer, cut out of what ``read_tail`` returned."""
    return tail[-_footer_size(tail, len(tail), path) :]


def _footer_size(tail: bytes | memoryview, size: int, path: str) -> int:
    """Bytes from the footer on: the footer, its length (4 bytes, little endian) and ``PAR1``.

    https://parquet.apache.org/docs/file-format/
    """
    footer_size = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] == b"PARE":
        raise DatasetError(f"{path} is encrypted, its footer, too. {WITHOUT_KEYS}")
    if size < 12 or tail[-4:] != b"PAR1" or footer_size > size:
        raise DatasetError(
            f"{path} ({size:,} bytes) does not end as a Parquet file does: it was cut short, or "
            "is something else. Write it again, or take it out of the folder."
        )
    return footer_size


class FileState(NamedTuple):
    """What the filesystem says of a file: its size, and when it was changed if that is known."""

    size: int
    mtime_ns: int | None


def open_footer(
    filesystem: pa.fs.FileSystem, folder: str, path: str
) -> tuple[FileState, pq.ParquetFile, bytes]:
    """The filesystem's facts about a file, its footer, and the footer's bytes.

    Args:
        filesystem: Where it is.
        folder: The data set's.
        path: The file's, relative to the folder.

    Raises:
        DatasetError: It is no Parquet file, holds days of the old calendar, or is elsewhere by a
            link of another user's.
    """
    full_path = f"{folder}/{path}"
    state, tail = _read_footer(filesystem, folder, path)
    parquet = parsed_footer(tail, full_path)
    refuse_legacy_calendar(filesystem, full_path, parquet)
    return state, parquet, tail


def _read_footer(filesystem: pa.fs.FileSystem, folder: str, path: str) -> tuple[FileState, bytes]:
    if isinstance(filesystem, pa.fs.LocalFileSystem):
        return _local_tail(folder, path)
    return _any_tail(filesystem, f"{folder}/{path}")


def _any_tail(filesystem: pa.fs.FileSystem, full_path: str) -> tuple[FileState, bytes]:
    info = filesystem.get_file_info(full_path)
    if info.type != pa.fs.FileType.File:
        raise DatasetError(f"{full_path} is not a file.")
    with open_input(filesystem, full_path) as stream:
        return FileState(info.size, info.mtime_ns), footer_bytes(stream, full_path)


def _local_tail(folder: str, path: str) -> tuple[FileState, bytes]:
    """Asks the kernel alone: of many small files, Arrow's streams take half of the time."""
    full_path = f"{folder}/{path}"
    try:
        descriptor, state = open_with_state(full_path)
    except (FileNotFoundError, IrregularFileError):
        raise DatasetError(f"{full_path} is not a file.") from None
    try:
        refuse_foreign_link(descriptor, folder, path)
        size = state.st_size
        tail = os.pread(descriptor, min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        needed = _footer_size(tail, size, full_path)
        if needed > len(tail):
            tail = os.pread(descriptor, needed, size - needed)
    finally:
        os.close(descriptor)
    return FileState(size, state.st_mtime_ns), tail[-needed:]


class FooterReader:
    """Reads the footers of files, most of which have one schema.

    Args:
        filesystem: Where the files are.
        directory: What their paths are relative to.
        just_written: Whether the checksums that Spark left beside them are still theirs.
        keep: Whether to keep the whole of each footer, too, to be written by ``write_footers``.
    """

    def __init__(
        self, filesystem: pa.fs.FileSystem, directory: str, *, just_written: bool, keep: bool
    ) -> None:
        self._filesystem, self._directory = filesystem, directory
        self._just_written, self._keep = just_written, keep
        self._columns: Columns | None = None

    def read(self, paths: Sequence[str]) -> Footers:
        """Reads the footers of some files.

        Raises:
            DatasetError: One is no Parquet file.
        """
        footers = Footers()
        footers.files.append(Files.of([self._read(path, footers) for path in paths]))
        return footers

    def _read(self, path: str, into: Footers) -> FileInfo:
        full_path = f"{self._directory}/{path}"
        info, tail = _read_footer(self._filesystem, self._directory, path)
        bare = parsed_footer(without_arrow_schema(tail), full_path)
        refuse_legacy_calendar(self._filesystem, full_path, bare)
        metadata = bare.metadata
        columns = self._columns
        if columns is None or not columns.fit(bare):
            parquet = parsed_footer(tail, full_path)
            if columns is None or not columns.is_of(parquet):
                columns = self._columns = columns_of(parquet, bare, full_path)
        if not into.schemas or into.schemas[-1][0] is not columns.schema:
            into.schemas.append((columns.schema, path))
        try:
            into.facts.add(metadata, columns)
        except IndexError as error:
            raise DatasetError(
                f"{full_path} has a broken Parquet footer: one of its {metadata.num_row_groups:,} "
                f"row groups lacks some of the {metadata.num_columns:,} columns. Write it again."
            ) from error
        crc32 = None
        if self._just_written:
            crc32 = crc32_from_sidecar(self._filesystem, full_path, info.size)
            into.may_be_infinite |= may_be_infinite(metadata, columns)
        into.page_rows = max(into.page_rows, page_rows_of(metadata))
        if self._keep:
            into.packed.append(_packed(tail))
        return FileInfo(
            path, info.size, metadata.num_rows, zlib.crc32(tail), settled_time(info), crc32
        )


def footers_path(directory: str, first_file: str) -> str:
    """The path of the file of all footers of a conversion on remote storage: beside its first file.

    They follow one another in the order of the files, and ``Manifest.footer_sizes`` says how long
    each is. So readers ask once for many footers, and not once for each file.
    """
    return f"{directory.rstrip('/')}/{first_file}".rpartition("/")[0] + f"/{FOOTERS_NAME}"


def write_footers(
    filesystem: pa.fs.FileSystem, directory: str, footers: Footers
) -> npt.NDArray[np.int64]:
    """Writes the footers of all files, in their order.

    Returns:
        ``Manifest.footer_sizes``.
    """
    folder, _, name = footers_path(directory, footers.files[0].path(0)).rpartition("/")
    with held(filesystem, folder) as there:
        there.write(name, b"".join(footers.packed))
    return np.array([len(packed) for packed in footers.packed], dtype=np.int64)


def _packed(footer: bytes) -> bytes:
    content: bytes = pa.Codec("zstd").compress(footer, asbytes=True)
    return len(footer).to_bytes(_SIZE_BYTES, "little") + content


def unpack_footer(packed: memoryview) -> bytes:
    """A footer out of the file of all footers, which somebody else may have written.

    Raises:
        ForeignFileError: It is none.
    """
    size = int.from_bytes(packed[:_SIZE_BYTES], "little")
    if size > _MOST_BYTES:
        raise ForeignFileError(f"it would have {size:,} bytes")
    try:
        content: bytes = pa.Codec("zstd").decompress(packed[_SIZE_BYTES:], size, asbytes=True)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise ForeignFileError(f"it cannot be read ({error!s:.100})") from None
    return content


def unpack_sizes(packed: str | None, files: int) -> npt.NDArray[np.int64] | None:
    """``Manifest.footer_sizes`` from its text.

    Raises:
        ForeignFileError: They are not the sizes of the footers of so many files.
    """
    if packed is None:
        return None
    sizes = unpack(packed, np.int64, files)
    if ((sizes < _SIZE_BYTES) | (sizes > _MOST_BYTES)).any():
        raise ForeignFileError("the footers of its files have impossible sizes")
    return sizes


def page_rows_of(metadata: pq.FileMetaData) -> int:
    """Rows after which a file's writer looked whether a page is full: smaller pages have as many.

    100 for parquet-java, which Spark writes by (``parquet.page.size.row.check.min``), and 1,024 for
    parquet-cpp and parquet-rs (``write_batch_size``), which pyarrow and delta-rs write by.
    """
    return 100 if (metadata.created_by or "").startswith("parquet-mr") else 1024


def settled_time(info: pa.fs.FileInfo | FileState) -> int | None:
    """When a file was last changed, or None if it could change again and keep that time.

    Object stores give whole seconds, within which a file may be written again.
    """
    changed: int | None = info.mtime_ns
    if changed is None or changed % 1_000_000_000:
        return changed
    return changed if time.time_ns() - changed > 2_000_000_000 else None


def in_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int
) -> list[_Result]:
    """``[function(item) for item in items]``, with several at a time."""
    results = slices_in_threads(lambda some: [function(item) for item in some], items, threads)
    return [result for some in results for result in some]


def slices_in_threads(
    function: Callable[[Sequence[_Item]], _Result], items: Sequence[_Item], threads: int
) -> list[_Result]:
    """What a function returns for slices of ``items``, in their order, with several at a time."""
    # Handing over one small file at a time costs as much as reading it.
    size = max(1, min(_MOST_TOGETHER, len(items) // (4 * threads)))
    slices = [items[start : start + size] for start in range(0, len(items), size)]
    if threads == 1 or len(slices) <= 1:
        return [function(some) for some in slices]
    with ThreadPoolExecutor(min(threads, len(slices)), "sparkdl-footers") as pool:
        return list(pool.map(function, slices))
