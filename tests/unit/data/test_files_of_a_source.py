"""The files of a source, as Hadoop's file system lists them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from sparkdl_runner.data.convert.sources import SourceFile, _list

STATUS = (
    "DeprecatedRawLocalFileStatus{{path=file:/data/{name}; isDirectory=false; length={size}; "
    "replication=1; blocksize=33554432; modification_time={time}; access_time=5; owner=me}}"
)


def frame(list_status: Any) -> Any:
    """A DataFrame of a session whose filesystem lists so."""
    spark = MagicMock()
    spark._jvm.org.apache.hadoop.fs.Path().getFileSystem().listStatus = list_status
    return SimpleNamespace(sparkSession=spark)


def test_files_are_known_by_path_size_and_time() -> None:
    texts = [STATUS.format(name=f"a b={n}; c", size=n, time=1000 + n) for n in (1, 2)]
    found = [SimpleNamespace(toString=lambda text=text: text) for text in texts]
    assert _list(frame(lambda path: found), "file:/data") == [
        SourceFile("file:/data/a b=1; c", 1, 1001),
        SourceFile("file:/data/a b=2; c", 2, 1002),
    ]


def test_a_folder_that_cannot_be_listed_holds_nothing() -> None:
    assert _list(frame(MagicMock(side_effect=OSError)), "file:/data") == []
