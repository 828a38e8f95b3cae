"""Reads Delta's deletion vectors: which rows of its files a table has deleted.

delta-rs names a table's files whatever its features are, but gives deletion vectors only if it
knows all of them. So the log is read here for the vectors, by the protocol:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyarrow import fs

from sparkdl_runner.base.foreign_file import open_input
from sparkdl_runner.data.dataset.lake.paths import path_in_table

LOG = "_delta_log"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.\w+")
_MAGIC = 1681511377
_UUID_LETTERS = 20
_TO_PYTHON = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
"""From the letters of Z85 to those of Python's base 85."""

Vector = Mapping[str, Any]
"""A vector's descriptor in the log."""


def find_vectors(
    filesystem: fs.FileSystem, directory: str, version: int
) -> dict[str, Vector | None]:
    """For each file that a version's log adds, by its path in there, its newest vector, if any.

    Files that were removed again may be among them.
    """
    selector = fs.FileSelector(f"{directory}/{LOG}")
    names = [info.base_name for info in filesystem.get_file_info(selector)]
    start, checkpoint = _newest_checkpoint(names, version)
    matches = [match for name in names if (match := _COMMIT.fullmatch(name))]
    commits = sorted(match[0] for match in matches if start < int(match[1]) <= version)
    return {
        path: vector
        for name in [*checkpoint, *commits]
        for path, vector in _added(filesystem, f"{directory}/{LOG}", name)
    }


def deleted_rows(
    filesystem: fs.FileSystem, directory: str, vector: Vector, most: int | None
) -> npt.NDArray[np.int64]:
    """The numbers of the rows of a file that its vector deletes, sorted.

    Args:
        filesystem: Where the table is.
        directory: Its folder.
        vector: What the log says of it.
        most: Rows of the file, if the log says that.

    Raises:
        ValueError: It is broken, or not in the table's folder.
    """
    from pyroaring import BitMap64

    data = _content(filesystem, directory, vector)
    if len(data) != vector["sizeInBytes"] or int.from_bytes(data[:4], "little") != _MAGIC:
        raise ValueError(f"the deletion vector {vector['pathOrInlineDv']} is broken")
    rows = BitMap64.deserialize(data[4:])
    # A few bytes may stand for any number of rows.
    if len(rows) != vector["cardinality"] or (most is not None and len(rows) > most):
        raise ValueError(
            f"the deletion vector {vector['pathOrInlineDv']} deletes {len(rows):,} rows, and the "
            f"log says {vector['cardinality']:,}, of a file of {most or 'some'} rows"
        )
    return np.fromiter(rows, np.int64, len(rows))


def _newest_checkpoint(names: list[str], version: int) -> tuple[int, list[str]]:
    """The version of the newest whole checkpoint up to a version, and its files; -1 for none."""
    groups: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            groups.setdefault((int(match[1]), int(match[2] or 1)), []).append(name)
    for (at, parts), files in sorted(groups.items(), reverse=True):
        if len(files) >= parts:  # Several of one part are equal: written twice.
            return at, sorted(files)[:parts]
    return -1, []


def _added(filesystem: fs.FileSystem, log: str, name: str) -> Iterator[tuple[str, Vector | None]]:
    """The files that a commit, a checkpoint or a part of it adds, with their vectors."""
    with open_input(filesystem, f"{log}/{name}") as stream:
        if name.endswith(".parquet"):
            parquet = pq.ParquetFile(stream)
            wanted = ["add.path", "add.deletionVector", "sidecar.path"]
            actions: list[dict[str, Any]] = parquet.read(columns=wanted).to_pylist()
        else:
            actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
    for action in actions:
        if action.get("add"):
            yield action["add"]["path"], action["add"].get("deletionVector")
        elif action.get("sidecar"):
            sidecar = path_in_table(action["sidecar"]["path"], f"{log}/_sidecars")
            yield from _added(filesystem, f"{log}/_sidecars", sidecar)


def _content(filesystem: fs.FileSystem, directory: str, vector: Vector) -> bytes:
    where, text = vector["storageType"], vector["pathOrInlineDv"]
    if where == "i":
        return _z85(text)[: vector["sizeInBytes"]]
    if where == "u":
        prefix, number = text[:-_UUID_LETTERS], text[-_UUID_LETTERS:]
        name = f"deletion_vector_{uuid.UUID(bytes=_z85(number))}.bin"
        path = path_in_table(f"{prefix}/{name}" if prefix else name, directory)
    else:
        path = path_in_table(text, directory)
    size = vector["sizeInBytes"]
    with open_input(filesystem, f"{directory}/{path}") as stream:
        # Its length and its checksum are big endian, all else is little endian.
        read: bytes = stream.read_at(size + 8, vector.get("offset") or 0)
    data = read[4:-4]
    ends = (len(data).to_bytes(4, "big"), zlib.crc32(data).to_bytes(4, "big"))
    if len(data) != size or (read[:4], read[-4:]) != ends:
        raise ValueError(f"{path} does not hold the deletion vector that the log says")
    return data


def _z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_PYTHON))
