"""Files that somebody else put there are looked at before they are read."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import fs

from open_files import no_file_left_open
from sparkdl_runner.base.foreign_file import (
    ForeignFileError,
    IrregularFileError,
    build,
    is_inside,
    open_input,
    open_regular,
    parse_json,
    read_into,
    read_small,
)

LOCAL = fs.LocalFileSystem()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("put", [pipe, device, folder])
def test_what_is_no_file_is_not_waited_for(tmp_path, put):
    path = tmp_path / "name"
    put(path)
    with no_file_left_open():
        with pytest.raises(IrregularFileError, match="is a pipe, a device or a folder, and no fil"):
            open_regular(path)
        with pytest.raises(OSError, match="name is a pipe"):
            read_small(LOCAL, str(path), 10)


@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_a_file_is_read_up_to_its_limit(tmp_path, kind):
    filesystem = LOCAL
    if kind == "fsspec":
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file")))
    path = tmp_path / "name"
    path.write_bytes(b"0123456789")
    assert read_small(filesystem, str(path), 10) == b"0123456789"
    with pytest.raises(ForeignFileError, match="it has 10 bytes, and at most 9 are read"):
        read_small(filesystem, str(path), 9)
    with pytest.raises(FileNotFoundError):
        read_small(filesystem, str(tmp_path / "none"), 9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"NaN", "NaN, which is no number"),
        (b"-Infinity", "-Infinity"),
        (b'"\xff"', "no text in UTF-8"),
        (b"[" + b"[]," * 1_000_001 + b"0]", "more than 1,000,000 lists and objects"),
    ],
)
def test_json_that_nobody_of_us_writes(text, sentence):
    with pytest.raises(ForeignFileError, match=sentence):
        parse_json(text)


def test_json_that_was_cut_short_is_told_from_that():
    with pytest.raises(json.JSONDecodeError):
        parse_json(b'{"a": 1')
    assert parse_json('{"é": [1, 2.5, null]}'.encode()) == {"é": [1, 2.5, None]}


@dataclass(frozen=True, kw_only=True)
class Some:
    name: str
    size: int
    more: int | None = None
    lengths: tuple[int | None, ...] = ()
    values: dict[str, float] | None = None


def test_fields_of_a_dataclass():
    fields = {"name": "a", "size": 1, "more": 2, "lengths": [1, None], "values": {"b": 1}}
    assert build(Some, fields) == Some(**fields)
    assert build(Some, {"name": "a", "size": 1, "more": None}).more is None
    good = {"name": "a", "size": 1}
    for wrong in (
        {"size": "1"},
        {"size": True},
        {"size": 1.0},
        {"size": 2**63},
        {"name": None},
        {"more": "x"},
        {"lengths": 1},
        {"lengths": ["1"]},
        {"values": {"b": "c"}},
        {"other": 1},
    ):
        with pytest.raises(ForeignFileError, match="which it cannot be"):
            build(Some, {**good, **wrong})
    with pytest.raises(ForeignFileError, match="something is missing"):
        build(Some, {"name": "a"})
    with pytest.raises(ForeignFileError, match="where keys and values should be"):
        build(Some, [good])


def test_paths_that_lead_out_of_a_folder():
    assert all(map(is_inside, ["a", "a/b.parquet", "_a-1/.b", "a=1/b c", "..a", "a..b/c"]))
    assert not any(
        map(is_inside, ["", "/a", "a/", "a//b", "..", "../a", "a/../../b", "./a", "a\0"])
    )


def test_a_part_is_read_by_one_request():
    asked = []

    class File(io.BytesIO):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    memory = memoryview(bytearray(10))
    with pa.PythonFile(File(b"0123456789"), mode="r") as stream:
        assert read_into(stream, 2, memory) == 8
        assert bytes(memory) == b"23456789\0\0"
        asked.clear()
        assert read_into(stream, 0, memory) == 10
        assert asked == [10]


def test_a_file_that_fills_memory_itself_is_asked_to():
    class File(pa.PythonFile):
        def fill(self, start, memory):
            memory[:2] = b"ab"
            return start

    class Handler(fs.FSSpecHandler):
        def __init__(self):
            pass

        def open_input_file(self, path):
            return File(io.BytesIO(b""), mode="r")

    memory = memoryview(bytearray(2))
    with open_input(fs.PyFileSystem(Handler()), "/a") as stream:
        assert read_into(stream, 7, memory) == 7
    assert bytes(memory) == b"ab"
