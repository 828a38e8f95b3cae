"""Checks whether a folder of other writers' Parquet files may be read in place.

A folder may if its rows are those of all its files. Tables of Delta, Iceberg or Hudi, outputs of
streams and unfinished writes hold further files, of other versions or of no version at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyarrow import fs

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.base.foreign_file import ForeignFileError, open_input, parse_json, read_small
from sparkdl_runner.data.dataset.footers import in_threads
from sparkdl_runner.data.errors import DatasetError

PARQUET_ENDINGS = (".parquet", ".parq")

_MAGIC = (b"PAR1", b"PARE")
"""The end of every Parquet file, and of an encrypted one."""


class _Kind(NamedTuple):
    """Something that keeps files of several versions beside one another."""

    mark: str
    """The folder inside by which it is known."""
    words: str
    reader: str


ICEBERG = _Kind("metadata", "an Iceberg table", "spark.read.format('iceberg').load(…)")
_ICEBERG_FILE = ".metadata.json"
DELTA = _Kind("_delta_log", "a Delta table", "spark.read.format('delta').load(…)")
_KINDS = (
    DELTA,
    _Kind(".hoodie", "a Hudi table", "spark.read.format('hudi').load(…)"),
    _Kind("_spark_metadata", "the output of a streaming query", "spark.read.parquet(…)"),
)

_MOST_COMMIT_BYTES = 64 << 20
_UNFINISHED = ("_temporary", "__magic")
"""Folders of Hadoop's and S3A's committers, which go when a write ends well."""


def find_parquet(filesystem: fs.FileSystem, directory: str, url: str) -> dict[str, fs.FileInfo]:
    """A folder's Parquet files, sorted by name, which together are its rows.

    Returns:
        What the filesystem says of each, by its name relative to the folder.

    Raises:
        DatasetError: Not all of its files are its rows, or not all of its rows are in them.
    """
    shown = redact(url)
    for root in (directory, *_above(directory)):
        kind = kind_of(filesystem, root)
        if kind is not None:
            part = "" if root == directory else f"a part of {root}, which is "
            whole = f"the path {root}, or " if kind in (DELTA, ICEBERG) else ""
            raise DatasetError(
                f"{shown} is {part}{kind.words}, whose folder also holds files of other versions: "
                f"pass {whole}{kind.reader} instead of its path."
            )
    prefix = len(directory.rstrip("/")) + 1
    entries = filesystem.get_file_info(fs.FileSelector(directory, recursive=True))
    files = {info.path[prefix:]: info for info in entries if info.type == fs.FileType.File}
    folders = {info.path[prefix:] for info in entries if info.type == fs.FileType.Directory}
    folders.update(parent for name in files for parent in _above(name))
    _refuse_unfinished(shown, files, folders)
    visible = [name for name in files if not is_hidden(name)]
    names = sorted(name for name in visible if name.endswith(PARQUET_ENDINGS))
    commits = [name for name in files if name.rpartition("/")[2].startswith("_committed_")]
    _refuse_removed(filesystem, directory, shown, commits)
    _refuse_partitions(shown, names)
    _refuse_sub_folders(shown, names, files)
    others = sorted(name for name in set(visible).difference(names) if files[name].size)
    _refuse_unnamed(filesystem, directory, shown, others)
    return {name: files[name] for name in names}


def is_hidden(path: str) -> bool:
    """Whether readers pass over a file, for its name or for that of a folder that it is in."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _above(path: str) -> Iterator[str]:
    """The folders that a path lies in, the nearest first."""
    while (path := path.rstrip("/").rpartition("/")[0]) != "":
        yield path


def kind_of(filesystem: fs.FileSystem, folder: str) -> _Kind | None:
    """The table format that keeps several versions in a folder, such as ``DELTA``; else None."""
    try:
        marks = [f"{folder}/{kind.mark}" for kind in (*_KINDS, ICEBERG)]
        *others, metadata = filesystem.get_file_info(marks)
        for kind, mark in zip(_KINDS, others, strict=True):
            if mark.type == fs.FileType.Directory:
                return kind
        if metadata.type == fs.FileType.Directory:
            entries = filesystem.get_file_info(fs.FileSelector(metadata.path))
            if any(_ICEBERG_FILE in entry.base_name for entry in entries):
                return ICEBERG
    except OSError:
        pass  # The user may lack the right to look into the folders above.
    return None


def _refuse_unfinished(shown: str, files: Collection[str], folders: set[str]) -> None:
    for folder in sorted(folders):
        above, _, name = folder.rpartition("/")
        # Readers skip hidden folders, so unfinished files there do no harm.
        if name.startswith(_UNFINISHED) and not is_hidden(above):
            raise DatasetError(
                f"{shown} holds the folder {folder}: something is being written there, or was "
                "ended before it was done, so rows may be missing. Let it end, or write the "
                "folder again; if you know that its rows are whole, delete that folder."
            )
    for name in sorted(files):  # Databricks marks the beginning and the end of a write.
        if "_started_" in name and name.replace("_started_", "_committed_") not in files:
            raise DatasetError(
                f"{shown} holds {name} and no mark that this write has ended: its files may be "
                "there in part. Let it end, or pass spark.read.parquet(…) instead of the path."
            )


def _refuse_removed(
    filesystem: fs.FileSystem, directory: str, shown: str, commits: Sequence[str]
) -> None:
    """Refuses files of earlier versions that Databricks lists as removed, and deletes later."""
    for name in commits:
        try:
            commit = parse_json(read_small(filesystem, f"{directory}/{name}", _MOST_COMMIT_BYTES))
        except json.JSONDecodeError:
            continue  # Another program's file of such a name.
        except (OSError, ForeignFileError) as error:
            raise DatasetError(
                f"{shown} holds {name}, as Databricks writes them, which cannot be read: {error}. "
                "Pass spark.read.parquet(…) instead of the path."
            ) from error
        if isinstance(commit, dict) and commit.get("removed"):
            raise DatasetError(
                f"{shown} was overwritten on Databricks ({name}), so that it may hold files of "
                "earlier versions: pass spark.read.parquet(…) instead of its path."
            )


def _refuse_partitions(shown: str, names: Sequence[str]) -> None:
    for name in names:
        folder = name.rpartition("/")[0]
        if "=" in folder:
            raise DatasetError(
                f"{shown} is partitioned by the names of its directories ({folder}), so its "
                "files lack those columns: pass spark.read.parquet(…) instead of its path."
            )


def _refuse_sub_folders(shown: str, names: Sequence[str], files: Iterable[str]) -> None:
    for kind in (*_KINDS, ICEBERG):
        for name in files:
            folder, mark, entry = f"/{name}".rpartition(f"/{kind.mark}/")
            if mark and (kind is not ICEBERG or _ICEBERG_FILE in entry):
                raise DatasetError(
                    f"{shown} holds {kind.words} in {folder[1:]}, whose folder also holds files of "
                    f"other versions: pass {kind.reader} instead of the path."
                )
    with_rows = {name.rpartition("/")[0] for name in names}
    if "" in with_rows and len(with_rows) > 1:
        raise DatasetError(
            f"{shown} holds Parquet files and, in the folder {min(with_rows - {''})}, more of "
            "them, which Spark would not read: pass the path of the folder that you mean, or a "
            "DataFrame."
        )


def _refuse_unnamed(
    filesystem: fs.FileSystem, directory: str, shown: str, names: Sequence[str]
) -> None:
    """Refuses files that are Parquet, but not by their names: Spark would read them, too."""

    def is_parquet(name: str) -> bool:
        with open_input(filesystem, f"{directory}/{name}") as stream:
            size = stream.size()
            return size >= 12 and stream.read_at(4, size - 4) in _MAGIC

    are_parquet = in_threads(is_parquet, names, 16)
    unnamed = [name for name, is_one in zip(names, are_parquet, strict=True) if is_one]
    if unnamed:
        raise DatasetError(
            f"{shown} holds {len(unnamed):,} Parquet files whose names do not end in .parquet, "
            f"such as {min(unnamed)}: rename them, or pass spark.read.parquet(…) instead of the "
            "path."
        )
