"""What the convert and the train job do with their settings, up to where Spark would start."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sparkdl_runner import data
from sparkdl_runner.data.errors import NoSharedFolderError
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs import convert, training
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.spark.source import Source
from sparkdl_runner.jobs.training import of_function
from sparkdl_runner.jobs.training.data import refusals
from sparkdl_runner.jobs.training.settings import TrainSettings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (32 << 20, "uncompressed", "float32", False, False)),
        (
            {"row_group_mb": 3, "compression": "zstd", "dtype": "keep", "allow_nulls": True}
            | {"mode": "overwrite"},
            (3 << 20, "zstd", None, True, True),
        ),
    ],
)
def test_a_conversion_is_as_its_settings_say(monkeypatch, given, expected):
    calls = []
    manifest = SimpleNamespace(files=[1], columns=[])

    class Converted:
        cache_dir_url = "file:/out"

        def open(self):
            return manifest, None, None

        def __len__(self):
            return 5

    def write_conversion(frame, url, **options):
        calls.append(options)
        return Converted()

    storage = SimpleNamespace(
        qualified=lambda path, spark: path,
        check_reachable=lambda url: None,
        check_writable=lambda spark, url: None,
        held_by=lambda spark, url: {},
    )
    monkeypatch.setattr(convert, "storage", storage)
    monkeypatch.setattr(convert, "spark_session", lambda name, slots: nullcontext(None))
    monkeypatch.setattr(Source, "read", lambda source, spark: None)
    monkeypatch.setattr(data, "write_conversion", write_conversion)
    convert.run(load(convert.ConvertSettings, None, {"source": "t", "output": "/out", **given}))
    (options,) = calls
    assert tuple(options.values()) == expected


class SparkAskedForError(Exception):
    """Instead of a session."""


@pytest.mark.parametrize(
    ("num_proc", "source", "example", "is_started"),
    [
        (-2, "folder", False, False),
        (2, "folder", False, True),
        (-2, "rows.csv", False, True),
        (-2, "folder", True, True),
    ],
)
def test_spark_is_started_where_it_is_needed(
    monkeypatch, tmp_path, num_proc, source, example, is_started
):
    def start(*arguments, **options):
        raise SparkAskedForError

    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.csv").touch()
    monkeypatch.setattr(of_function, "find_function", lambda place: lambda x: None)
    monkeypatch.setattr(training, "spark_session", start)
    given = {"function": "a:b", "data": {"x": str(tmp_path / source)}}
    if example:
        given = {"example": "digits"}
    settings = load(TrainSettings, None, {**given, "num_proc": num_proc, "tracking": False})
    expected = SparkAskedForError if is_started else ConfigError
    with pytest.raises(expected), training.prepared(settings):
        pass


def test_what_is_wrong_with_data_is_told_by_its_key_and_not_by_sparks_setting():
    told = "share with the ranks: give cache_url, such as s3a:"
    with pytest.raises(ConfigError, match=told), refusals("data.x"):
        raise NoSharedFolderError("set the Spark setting a.b.c to one")
    with pytest.raises(ConfigError, match=r"^data\.x: no such type$"), refusals("data.x"):
        raise TypeError("no such type\nand more")
