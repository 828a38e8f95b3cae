"""The manifest: what a converted data set holds, written last, as its commit.

Readers trust only what a manifest lists. A file that it does not list, such as the leftover of a
failed Spark attempt, is never read; a directory without one is not a data set.

``describe.describe_parquet`` builds one, ``describe.check_files`` holds the files against it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner import __version__
from sparkdl_runner.data.errors import DatasetError, NoManifestError

MANIFEST_NAME = "_manifest.json"
"""The underscore makes Spark, Arrow and petastorm pass over it when they list a directory."""

FORMAT_VERSION = 1

HINTS = ("vector", "image")
"""What ``ColumnInfo.hint`` may be, besides None: an ML vector, or a row of Spark's ImageSchema."""


@dataclass(frozen=True, kw_only=True)
class FileInfo:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """All row groups of a data set, in the order of its files.

    Attributes:
        file: int32 ``[row_groups]``, which file each belongs to.
        index_in_file: int32 ``[row_groups]``.
        rows: int64 ``[row_groups]``.
        size_bytes: int64 ``[row_groups]``, encoded but not compressed.
    """

    file: npt.NDArray[np.int32]
    index_in_file: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, per_file: Iterable[Iterable[tuple[int, int]]]) -> RowGroups:
        """Builds the arrays from ``(rows, size_bytes)`` of each row group of each file."""
        entries = [
            (file, index, rows, size_bytes)
            for file, groups in enumerate(per_file)
            for index, (rows, size_bytes) in enumerate(groups)
        ]
        table = np.array(entries, dtype=np.int64).reshape(len(entries), 4)
        return cls(
            file=table[:, 0].astype(np.int32),
            index_in_file=table[:, 1].astype(np.int32),
            rows=table[:, 2].copy(),
            size_bytes=table[:, 3].copy(),
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, kw_only=True)
class ColumnInfo:
    """What is known of one column beyond its Arrow type."""

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
    """One of ``HINTS``, where Parquet does not say what a column means."""
    is_clustered: bool = False
    """Whether most row groups hold one value each, and not all the same, by their statistics."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest:
    """Files, row groups, schema and columns of one data set."""

    files: tuple[FileInfo, ...]
    row_groups: RowGroups
    schema_base64: str
    """The Arrow schema, as an IPC message without metadata."""
    columns: tuple[ColumnInfo, ...]
    content_digest: str | None = None
    """What Spark made of all values and their order while it wrote them, where it did."""
    created_by: str = field(default_factory=lambda: f"sparkdl_runner {__version__}")
    format_version: int = FORMAT_VERSION

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema_base64)))

    @cached_property
    def rows(self) -> int:
        """Rows in all files."""
        return int(self.row_groups.rows.sum())

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that name the rows and their order.

        Equal for equal rows that were converted again, wherever their content is known. Else it is
        ``files_fingerprint``, which is equal for a copy.
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
        for file in self.files:
            entry = [file.path, file.size_bytes, file.rows, file.footer_crc32, file.crc32]
            digest.update(json.dumps(entry).encode())
        digest.update(self.row_groups.rows.astype("<i8").tobytes())
        digest.update(self.schema_base64.encode())
        return digest.hexdigest()[:32]

    @cached_property
    def digest(self) -> str:
        """64 hex digits that follow from all that readers take from the manifest."""
        columns = [vars(column) for column in self.columns]
        times = [file.modified_ns for file in self.files]
        known = [self.files_fingerprint, self.content_digest, columns, times]
        digest = hashlib.sha256(json.dumps(known).encode())
        digest.update(self.row_groups.file.astype("<i8").tobytes())
        digest.update(self.row_groups.size_bytes.astype("<i8").tobytes())
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
            "fingerprint": self.files_fingerprint,  # A checksum of this manifest, as ever.
            "content_digest": self.content_digest,
            "rows": self.rows,
            "columns": [
                {**vars(column), "list_lengths": list(column.list_lengths)}
                for column in self.columns
            ],
            "schema_base64": self.schema_base64,
            "files": [dict(vars(file)) for file in self.files],
            "row_groups": {
                "file": self.row_groups.file.tolist(),
                "rows": self.row_groups.rows.tolist(),
                "size_bytes": self.row_groups.size_bytes.tolist(),
            },
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Manifest:
        """Rebuilds what ``to_json`` returned.

        Raises:
            DatasetError: It is of another format version, or does not add up.
        """
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise DatasetError(
                f"the manifest has format version {version!r} (written by "
                f"{fields.get('created_by', 'something else')}), and this sparkdl_runner "
                f"{__version__} reads version {FORMAT_VERSION}. Convert the DataFrame again, or "
                "use the version that wrote it."
            )
        groups = fields["row_groups"]
        file = np.array(groups["file"], dtype=np.int32)
        starts = np.searchsorted(file, file)  # where each row group's own file begins
        manifest = cls(
            files=tuple(FileInfo(**entry) for entry in fields["files"]),
            row_groups=RowGroups(
                file=file,
                index_in_file=(np.arange(len(file)) - starts).astype(np.int32),
                rows=np.array(groups["rows"], dtype=np.int64),
                size_bytes=np.array(groups["size_bytes"], dtype=np.int64),
            ),
            schema_base64=fields["schema_base64"],
            columns=tuple(
                ColumnInfo(**{**entry, "list_lengths": tuple(entry["list_lengths"])})
                for entry in fields["columns"]
            ),
            content_digest=fields.get("content_digest"),  # Manifests of before have none.
            created_by=fields["created_by"],
        )
        if manifest.files_fingerprint != fields["fingerprint"]:
            raise DatasetError(
                "the manifest was edited: its files and row groups no longer add up to its "
                "fingerprint. Convert the DataFrame again."
            )
        return manifest

    def write(self, filesystem: pa.fs.FileSystem, directory: str) -> None:
        """Writes the manifest into ``directory``: the commit, so call it last.

        One small file, written in one go; a torn one is refused by ``read``. How one takes the
        place of another is seen to in ``replacing``.
        """
        text = json.dumps(self.to_json(), separators=(",", ":"))
        with filesystem.open_output_stream(f"{directory.rstrip('/')}/{MANIFEST_NAME}") as stream:
            stream.write(text.encode())

    @classmethod
    def read(cls, filesystem: pa.fs.FileSystem, directory: str) -> Manifest:
        """Reads the manifest of the data set in ``directory``.

        Raises:
            NoManifestError: There is none.
            DatasetError: It is torn, edited, or of another format version.
        """
        path = f"{directory.rstrip('/')}/{MANIFEST_NAME}"
        try:
            with filesystem.open_input_stream(path) as stream:
                text = stream.read()
        except FileNotFoundError:
            raise NoManifestError(
                f"{directory} has no {MANIFEST_NAME}: it is not a converted data set, or its "
                "conversion did not finish. Convert it with "
                "sparkdl_runner.data.make_spark_converter."
            ) from None
        try:
            return cls.from_json(json.loads(text))
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path} cannot be read ({type(error).__name__}: {error}): it was cut short or "
                "edited. Convert the DataFrame again."
            ) from error
