"""The manifest: what a converted data set holds, written last, as its commit.

Readers trust only what a manifest lists. A file that it does not list, such as the leftover of a
failed Spark attempt, is never read; a directory without one is not a data set.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.base.foreign_file import (
    ForeignFileError,
    build,
    parse_json,
    read_small,
)
from sparkdl_runner.base.version import __version__
from sparkdl_runner.data.dataset.files import FileInfo, Files, pack
from sparkdl_runner.data.dataset.footers import unpack_sizes
from sparkdl_runner.data.dataset.held_folder import HeldFolder, held
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.dataset.view.view import View
from sparkdl_runner.data.errors import DatasetError, NoManifestError

MANIFEST_NAME = "_manifest.json"
"""The underscore makes Spark, Arrow and petastorm pass over it when they list a directory."""

FORMAT_VERSION = 2

SPARKS_PAGE_ROWS = 100
PAGE_BYTES = 1 << 20
"""Writers make pages of so many bytes by default."""
WRITTEN_PAGE_ROWS, WRITTEN_PAGE_BYTES = 10, 128 << 10
"""The same of conversions: a reader holds a page of each column of each open row group."""

_FINGERPRINTED = ("size_bytes", "rows", "footer_crc32", "crc32")

MOST_BYTES = 64 << 20
"""The largest manifest that is read: some 2,000,000 files."""


SCALAR_CODEC = "ScalarCodec"
NUMBER_TYPES = {
    **{name: getattr(pa, name)() for name in ("int8", "int16", "int32", "int64")},
    **{name: getattr(pa, name)() for name in ("uint8", "uint16", "uint32")},
    **{name: getattr(pa, name)() for name in ("float16", "float32", "float64")},
}
"""Arrow's types of numbers by NumPy's names."""


@dataclass(frozen=True, kw_only=True)
class ColumnInfo:
    """Facts about one column beyond its Arrow type."""

    name: str
    type: str
    """The Arrow type, for people; the schema is what counts."""
    null_count: int
    """Rows that are null, plus null elements inside of lists. Above zero exactly if any is."""
    list_lengths: tuple[int | None, ...] = ()
    """The length of every list, at each depth from the outside in; None where lengths differ.

    ``()`` for a column that holds no lists. The size for a column of ML vectors; height, width
    and channels for images.
    """
    size_bytes: int = 0
    """Encoded but not compressed, of the whole column."""
    hint: str | None = None
    """``"vector"`` for ML vectors, ``"image"`` for rows of Spark's ImageSchema.

    Where a codec of petastorm's wrote the column, the codec and NumPy's type, such as
    ``"NdarrayCodec float32"``; ``list_lengths`` is then the shape of one row. For a plain number
    that petastorm makes another type of than is stored: ``"ScalarCodec int64"``.
    """
    is_clustered: bool = False
    """Whether most row groups hold one value each, and not all the same, by their statistics."""
    decoded_bytes: int | None = None
    """Bytes of all values once they are decoded, without offsets: of texts, bytes, and of the
    numbers in lists or vectors. None for a column of one number a row, and where nobody measured
    it: manifests of before."""
    group_row_bytes: int | None = None
    """Of the row group whose rows are largest: the mean bytes of a row once decoded, rounded up."""
    most_row_bytes: int | None = None
    """Bytes of the largest row once decoded; None where it is not known."""

    @property
    def number_type(self) -> pa.DataType | None:
        """The type that petastorm makes of its numbers; None for the one that is stored."""
        codec, _, dtype = (self.hint or "").partition(" ")
        return NUMBER_TYPES.get(dtype) if codec == SCALAR_CODEC else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest:
    """Files, row groups, schema and columns of one data set."""

    files: Sequence[FileInfo]
    """``Files``, once it is made."""
    row_groups: RowGroups
    schema_base64: str
    """The Arrow schema, as an IPC message without metadata."""
    columns: tuple[ColumnInfo, ...]
    content_digest: str | None = None
    """Spark's checksum of all values and their order, if it reported one."""
    view: View | None = None
    """The part of the files that is the data set; None for all. Never written to a file."""
    shuffle_seed: int | None = None
    """The seed of Spark's shuffle while it wrote the rows; None if there was none."""
    page_rows: int = SPARKS_PAGE_ROWS
    """Rows that a page has at least, however long the values are: ``footers.page_rows_of``."""
    page_bytes: int = PAGE_BYTES
    """Bytes after which a page is full."""
    may_be_infinite: frozenset[str] = frozenset()
    """Columns of float32 in which the footers of a new conversion do not rule out an infinite
    value. Never written to a file."""
    footer_sizes: npt.NDArray[np.int64] | None = None
    """``[files]``, bytes of each footer in the file of all footers; None if there is none."""
    created_by: str = field(default_factory=lambda: f"sparkdl_runner {__version__}")
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", Files.of(self.files))

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema_base64)))

    @cached_property
    def rows(self) -> int:
        """Rows in all files."""
        return int(self.row_groups.rows.sum())

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that name the rows and their order.

        Equal when equal rows are converted again, if Spark reported their content digest.
        Otherwise ``files_fingerprint``, which only a copy of the files shares.
        """
        if self.content_digest is None:
            return self.files_fingerprint
        columns = [
            [column.name, column.type, column.null_count, column.list_lengths]
            for column in self.columns
        ]
        digest = hashlib.sha256(json.dumps([self.content_digest, columns]).encode())
        digest.update(self.row_groups.rows.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def files_fingerprint(self) -> str:
        """32 hex digits that name these very files."""
        digest = hashlib.sha256()
        for content in Files.of(self.files).contents(_FINGERPRINTED):
            digest.update(content)
        digest.update(self.row_groups.rows.astype("<i8").tobytes())
        digest.update(self.schema_base64.encode())
        if self.view is not None:
            digest.update(self.view.digest.encode())
        return digest.hexdigest()[:32]

    @cached_property
    def digest(self) -> str:
        """64 hex digits over all that readers take from the manifest."""
        columns = [vars(column) for column in self.columns]
        known = [self.files_fingerprint, self.content_digest, self.shuffle_seed, columns]
        if self.page_rows != SPARKS_PAGE_ROWS:  # Other digests are as they were without it.
            known.append(self.page_rows)
        if self.page_bytes != PAGE_BYTES:
            known.append(self.page_bytes)
        digest = hashlib.sha256(json.dumps(known).encode())
        times = Files.of(self.files).numbers("modified_ns")
        for numbers in (times, self.row_groups.file, self.row_groups.size_bytes):
            digest.update(numbers.astype("<i8").tobytes())
        if self.footer_sizes is not None:
            digest.update(self.footer_sizes.astype("<i8").tobytes())
        return digest.hexdigest()

    def column(self, name: str) -> ColumnInfo:
        """The column called ``name``; KeyError if there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, ColumnInfo]:
        return {column.name: column for column in self.columns}

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for ``json.dumps``."""
        return {
            "format_version": self.format_version,
            "created_by": self.created_by,
            "fingerprint": self.files_fingerprint,
            "content_digest": self.content_digest,
            "shuffle_seed": self.shuffle_seed,
            "page_rows": self.page_rows,
            "page_bytes": self.page_bytes,
            "rows": self.rows,
            "columns": [
                {**vars(column), "list_lengths": [*column.list_lengths]} for column in self.columns
            ],
            "schema_base64": self.schema_base64,
            "files": Files.of(self.files).to_json(),
            "row_groups": self.row_groups.to_json(),
            "footer_sizes": None if self.footer_sizes is None else pack(self.footer_sizes),
        }

    @classmethod
    def from_json(cls, fields: Any) -> Manifest:
        """Rebuilds what ``to_json`` returned.

        Raises:
            DatasetError: It is of another format version, or does not add up.
            ForeignFileError: A value is missing, of another type, or not possible.
        """
        if not isinstance(fields, dict):
            raise ForeignFileError("it holds no fields")
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"the manifest has format version {version!r:.60} (written by "
                f"{fields.get('created_by', 'something else')!s:.60}), and this sparkdl_runner "
                f"{__version__} reads version {FORMAT_VERSION}. Convert the DataFrame again, or "
                "use the version that wrote it."
            )
        stored = build(_Fields, {name: fields.get(name) for name in _Fields.__annotations__})
        files = Files.from_json(stored.files)
        columns = [build(ColumnInfo, entry) for entry in stored.columns]
        manifest = cls(
            files=files,
            row_groups=RowGroups.from_json(stored.row_groups, len(files)),
            schema_base64=stored.schema_base64,
            columns=tuple(
                replace(column, list_lengths=tuple(column.list_lengths)) for column in columns
            ),
            content_digest=stored.content_digest,
            shuffle_seed=stored.shuffle_seed,
            page_rows=SPARKS_PAGE_ROWS if stored.page_rows is None else stored.page_rows,
            page_bytes=PAGE_BYTES if stored.page_bytes is None else stored.page_bytes,
            footer_sizes=unpack_sizes(stored.footer_sizes, len(files)),
            created_by=stored.created_by,
        )
        _check(manifest)
        if manifest.files_fingerprint != stored.fingerprint:
            raise DatasetError(
                "the manifest was edited: its files and row groups no longer add up to its "
                "fingerprint. Convert the DataFrame again."
            )
        return manifest

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Reads the content of a manifest's file.

        Raises:
            DatasetError: It is torn, edited, of another format version, or was never a manifest.
        """
        try:
            return cls.from_json(parse_json(text))
        except ValueError as error:
            raise DatasetError(
                f"it cannot be read ({error}): it was cut short or edited. Convert the DataFrame "
                "again."
            ) from error

    def write(self, filesystem: pa.fs.FileSystem, directory: str) -> None:
        """Writes the manifest into ``directory``: the commit, so call it last.

        One small file, written in one go; ``read`` refuses a torn one. ``convert/replacing.py``
        puts one in the place of another.
        """
        with held(filesystem, directory.rstrip("/"), may_be_link=True) as folder:
            self.write_into(folder)

    def write_into(self, folder: HeldFolder) -> None:
        """The same, into a folder that is held."""
        text = json.dumps(self.to_json(), separators=(",", ":")).encode()
        if len(text) > MOST_BYTES:
            raise DatasetError(
                f"{folder.name} has {len(self.files):,} files with {len(self.row_groups):,} "
                f"row groups, and its manifest would have {len(text):,} bytes; {MOST_BYTES:,} are "
                "read of one. Write fewer and larger files, by df.coalesce(…) before converting."
            )
        folder.write(MANIFEST_NAME, text)

    @classmethod
    def read(cls, filesystem: pa.fs.FileSystem, directory: str) -> Manifest:
        """Reads the manifest of the data set in ``directory``.

        Raises:
            NoManifestError: There is none.
            DatasetError: It is torn, edited, or of another format version.
        """
        path = f"{directory.rstrip('/')}/{MANIFEST_NAME}"
        try:
            text = read_small(filesystem, path, MOST_BYTES)
        except FileNotFoundError:
            raise NoManifestError(
                f"{directory} has no {MANIFEST_NAME}: it is not a converted data set, or its "
                "conversion did not finish. Convert it with "
                "sparkdl_runner.data.make_spark_converter."
            ) from None
        except ForeignFileError as error:
            raise DatasetError(
                f"{path} cannot be a manifest: {error}. Convert the DataFrame again."
            ) from None
        try:
            return cls.from_bytes(text)
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from error.__cause__


@dataclass(frozen=True, kw_only=True)
class _Fields:
    """The fields of a manifest's JSON that are read, besides the format version."""

    fingerprint: str
    files: dict[str, Any]
    row_groups: dict[str, Any]
    schema_base64: str
    columns: list[Any]
    created_by: str
    content_digest: str | None
    shuffle_seed: int | None
    page_rows: int | None
    page_bytes: int | None
    footer_sizes: str | None


def _check(manifest: Manifest) -> None:
    """Raises a ForeignFileError for values that no manifest of ours has."""
    try:
        names = manifest.schema.names
    except (ValueError, OSError, pa.ArrowException) as error:
        raise ForeignFileError(f"its schema cannot be read ({error!s:.200})") from None
    if names != [column.name for column in manifest.columns]:
        raise ForeignFileError("its columns are not those of its schema")
    if min(manifest.page_rows, manifest.page_bytes) < 1:
        raise ForeignFileError("its pages have no rows, or no bytes")
