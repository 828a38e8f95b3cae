"""The files of a data set, as arrays: there may be a hundred thousand of them in every rank."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl_runner.base.foreign_file import ForeignFileError, build

_MOST_BYTES = 1 << 28
"""The limit for one unpacked array: a forged text could claim any size."""
# A part of a path that is empty, or leads elsewhere, in paths that are joined by NUL.
_NOT_INSIDE = re.compile(rb"(?:^|[/\0])\.{0,2}(?=[/\0]|$)")


def pack(values: npt.NDArray[Any]) -> str:
    """An array as text for JSON: its bytes, little endian, by Zstandard and Base64."""
    content = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
    return base64.b64encode(pa.Codec("zstd").compress(content, asbytes=True)).decode()


def unpack(text: str, dtype: Any, count: int) -> npt.NDArray[Any]:
    """Unpacks the result of ``pack``, ``[count]``. The text may be foreign.

    Raises:
        ForeignFileError: It is not so many values.
    """
    wanted = np.dtype(dtype).newbyteorder("<")
    size = count * wanted.itemsize
    if not 0 <= size <= _MOST_BYTES:
        raise ForeignFileError(f"it cannot hold {count:,} values")
    try:
        packed = base64.b64decode(text, validate=True)
        content = pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise ForeignFileError(f"an array of it cannot be read ({error!s:.100})") from None
    if len(content) != size:
        raise ForeignFileError(f"an array of it has {len(content):,} and not {size:,} bytes")
    return np.frombuffer(content, wanted).astype(dtype)


class FileInfo(NamedTuple):
    """One Parquet file."""

    path: str
    """Relative to the data set's directory, with ``/`` between its parts."""
    size_bytes: int
    rows: int
    footer_crc32: int
    """CRC-32 of the file's Parquet footer: where every column chunk lies, and its statistics."""
    modified_ns: int | None = None
    """When the file was last changed, where the filesystem says; a copy may differ."""
    crc32: int | None = None
    """CRC-32 of the whole file, where Spark left checksums beside it: on ``file:`` URLs."""


_UNKNOWN = -1
"""Stands for None."""
_LEAST = {
    "size_bytes": 0,
    "rows": 0,
    "footer_crc32": 0,
    "modified_ns": _UNKNOWN,
    "crc32": _UNKNOWN,
}
"""The numbers of a file, in the order of its fields, and the smallest value of each."""


class Files(Sequence[FileInfo]):
    """The files of a data set, in its order.

    Args:
        paths: Their paths, in UTF-8, joined by NUL.
        numbers: int64 ``[files]`` for each number of a ``FileInfo``, -1 for None.
    """

    def __init__(self, paths: bytes, numbers: dict[str, npt.NDArray[np.int64]]) -> None:
        self._joined, self._numbers = paths, numbers

    @classmethod
    def of(cls, files: Iterable[FileInfo]) -> Files:
        """The same files."""
        if isinstance(files, Files):
            return files
        files = list(files)
        numbers = {
            name: np.array([_UNKNOWN if (it := file[place]) is None else it for file in files], int)
            for place, name in enumerate(_LEAST, start=1)
        }
        return cls("\0".join([file.path for file in files]).encode(), numbers)

    @classmethod
    def joined(cls, parts: Sequence[Files]) -> Files:
        """The files of all parts, one after the other."""
        numbers = {name: np.concatenate([part._numbers[name] for part in parts]) for name in _LEAST}
        return cls(b"\0".join([part._joined for part in parts]), numbers)

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """int64 ``[files]``: a number of each, such as ``size_bytes``; -1 for None."""
        return self._numbers[name]

    def number(self, name: str, index: int) -> int | None:
        """A number of one file; None where it is not known."""
        value = int(self._numbers[name][index])
        return None if value == _UNKNOWN else value

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The end of each path in the joined text."""
        is_end = np.frombuffer(self._joined, np.uint8) == 0
        return np.append(np.flatnonzero(is_end), len(self._joined))

    def path(self, index: int) -> str:
        """The path of the file of this number."""
        start = int(self._ends[index - 1]) + 1 if index else 0
        return self._joined[start : int(self._ends[index])].decode()

    def paths(self) -> list[str]:
        """The paths of all, in their order."""
        return self._joined.decode().split("\0") if len(self) else []

    def __len__(self) -> int:
        return len(self._numbers["rows"])

    @overload
    def __getitem__(self, index: int) -> FileInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FileInfo]: ...
    def __getitem__(self, index: int | slice) -> FileInfo | Sequence[FileInfo]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        numbers: dict[str, Any] = {name: self.number(name, index) for name in _LEAST}
        return FileInfo(path=self.path(index), **numbers)

    def __iter__(self) -> Iterator[FileInfo]:
        columns = (self._numbers[name].tolist() for name in _LEAST)
        for path, *numbers in zip(self.paths(), *columns, strict=True):
            known: list[Any] = [None if it == _UNKNOWN else it for it in numbers]
            yield FileInfo(path, *known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Files.from_json, (self.to_json(),)

    def contents(self, names: Iterable[str] = _LEAST) -> Iterable[bytes]:
        """All that is known, or what these numbers say, as bytes for a digest."""
        yield len(self._joined).to_bytes(8, "little") + self._joined
        for name in names:
            yield self._numbers[name].astype("<i8").tobytes()

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for ``json.dumps``."""
        return {
            "count": len(self),
            "paths_bytes": len(self._joined),
            "paths": pack(np.frombuffer(self._joined, np.uint8)),
            **{name: pack(self._numbers[name]) for name in _LEAST},
        }

    @classmethod
    def from_json(cls, fields: Any) -> Files:
        """Rebuilds the result of ``to_json``, which may be foreign.

        Raises:
            ForeignFileError: They are no files, or some that are not in their folder.
        """
        packed = build(_Fields, fields)
        paths = unpack(packed.paths, np.uint8, packed.paths_bytes).tobytes()
        numbers = {name: unpack(getattr(packed, name), np.int64, packed.count) for name in _LEAST}
        files = cls(paths, numbers)
        if packed.count != (len(files._ends) if paths or packed.count else 0):
            raise ForeignFileError("some of its files have no name")
        if packed.count and (outside := _NOT_INSIDE.search(paths)):
            index = int(np.searchsorted(files._ends, outside.end()))
            shown = paths.split(b"\0")[min(index, packed.count - 1)]
            raise ForeignFileError(f"it lists {shown!r:.200}, which is not in its folder")
        try:
            paths.decode()
        except UnicodeDecodeError:
            raise ForeignFileError("the names of its files are no text in UTF-8") from None
        for name, least in _LEAST.items():
            if (numbers[name] < least).any():
                raise ForeignFileError(f"some of its files have an impossible {name}")
        return files


@dataclass(frozen=True, kw_only=True)
class _Fields:
    count: int
    paths_bytes: int
    paths: str
    size_bytes: str
    rows: str
    footer_crc32: str
    modified_ns: str
    crc32: str
