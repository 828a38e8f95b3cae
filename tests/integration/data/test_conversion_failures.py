"""What goes wrong while converting leaves nothing that could be read by mistake."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from sparkdl_runner.data import (
    ConversionError,
    DatasetError,
    NoManifestError,
    SparkDatasetConverter,
    make_spark_converter,
    sweep_leftovers,
)
from sparkdl_runner.data.convert import write
from sparkdl_runner.data.dataset import describe
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest

pytestmark = pytest.mark.integration


def numbers(spark, rows=20):
    return spark.range(0, rows, 1, 2).select("id", F.array(F.col("id") * 1.5).alias("f"))


def ids(dataset: SparkDatasetConverter) -> list[int]:
    with dataset.make_torch_dataloader(batch_size=1, num_epochs=1) as loader:
        return sorted(batch["id"].item() for batch in loader)


def directory_of(dataset: SparkDatasetConverter) -> Path:
    return Path(dataset.cache_dir_url.removeprefix("file://"))


@pytest.fixture
def small_disk(spark, tmp_path) -> Iterator[Path]:
    """A file system of 1 MiB, which needs root."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.xfail("only root can mount a small file system")
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{path}/cache")
    yield path
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
    shutil.rmtree(path / "cache", ignore_errors=True)
    close_what_failed(spark, path)
    subprocess.run(["umount", str(path)], check=True)


def close_what_failed(spark, disk: Path) -> None:
    """Hadoop leaves a file open that it could not write; the JVM closes it when it collects."""
    deadline = time.monotonic() + 300
    while (used := shutil.disk_usage(disk).used) > 100_000:
        assert time.monotonic() < deadline, f"{used} bytes of {disk} are still in use"
        gc.collect()  # Python's error holds on to Java's.
        spark.sparkContext._jvm.System.gc()
        time.sleep(0.1)


def test_a_full_disk(spark, small_disk):
    too_much = spark.range(0, 1_000_000, 1, 2).select(F.rand(seed=1).alias("x"))
    with pytest.raises(ConversionError, match="No space left on device"):
        make_spark_converter(too_much)
    assert not list(small_disk.rglob("*.parquet"))
    assert not list(small_disk.rglob(MANIFEST_NAME))
    close_what_failed(spark, small_disk)
    assert ids(make_spark_converter(numbers(spark))) == list(range(20)), "the space is free again"


def test_a_disk_that_is_full_at_the_very_end(spark, cache_dir, monkeypatch):
    def torn(self, filesystem, directory):
        Path(directory, MANIFEST_NAME).write_text("{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", torn)
        with pytest.raises(OSError, match="No space left"):
            make_spark_converter(numbers(spark))
    assert not list(cache_dir.rglob("*.parquet"))
    assert not list(cache_dir.rglob(MANIFEST_NAME))
    assert ids(make_spark_converter(numbers(spark))) == list(range(20))


def test_a_cache_directory_that_cannot_be_written(spark, tmp_path):
    conf = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
    (tmp_path / "file").write_text("not a directory")
    spark.conf.set(conf, f"file://{tmp_path}/file/cache")
    try:
        with pytest.raises(ConversionError, match=f"Cannot write to the cache directory.*{conf}"):
            make_spark_converter(numbers(spark))
        spark.conf.set(conf, "no/scheme")
        with pytest.raises(ValueError, match=f"{conf}: .* has no scheme"):
            make_spark_converter(numbers(spark))
    finally:
        spark.conf.unset(conf)


def test_a_row_that_fails_says_why_and_is_tried_again(spark, cache_dir):
    @F.udf("long")
    def fragile(value):
        if value == 17:
            raise ArithmeticError("seventeen is too much")
        return value

    df = numbers(spark).withColumn("id", fragile("id"))
    for _ in range(2):
        with pytest.raises(ConversionError, match="Spark could not write") as caught:
            make_spark_converter(df)
        assert "seventeen is too much" in str(caught.value.__cause__)
        assert not list(cache_dir.rglob("*.parquet"))


def test_an_orphan_of_a_failed_attempt_is_refused_while_converting(spark, cache_dir, monkeypatch):
    real = describe.describe_written

    def with_orphan(written, *args):
        first = min(Path(written.url.removeprefix("file://")).glob("*.parquet"))
        shutil.copy(first, first.with_name("part-00009-other-attempt-c000.parquet"))
        return real(written, *args)

    monkeypatch.setattr(describe, "describe_written", with_orphan)
    with pytest.raises(ConversionError, match=r"wrote 20 rows .* hold 30: a failed attempt"):
        make_spark_converter(numbers(spark))
    assert not list(cache_dir.rglob("*.parquet"))


@pytest.mark.usefixtures("cache_dir")
def test_an_orphan_that_comes_later_is_never_read(spark):
    dataset = make_spark_converter(numbers(spark))
    first = min(directory_of(dataset).glob("*.parquet"))
    shutil.copy(first, first.with_name("part-00009-zombie-c000.parquet"))
    assert ids(dataset) == list(range(20))
    assert ids(make_spark_converter(dataset.cache_dir_url)) == list(range(20))


@pytest.mark.usefixtures("cache_dir")
def test_counts_that_spark_lost_are_read_from_the_files(spark, monkeypatch, caplog):
    monkeypatch.setattr(write, "_wait_for", lambda observation: {})
    with pytest.raises(DatasetError, match=r"nulls in column 'f' \(1\)"):
        make_spark_converter(spark.createDataFrame([([1.0],), ([None],)], "f array<float>"))
    dataset = make_spark_converter(numbers(spark))
    assert dataset.open()[0].column("f").list_lengths == (1,)
    assert ids(dataset) == list(range(20))


@pytest.mark.usefixtures("cache_dir")
def test_threads_with_an_equal_dataframe_share_one_conversion(spark):
    made: list[SparkDatasetConverter] = []
    threads = [
        threading.Thread(target=lambda: made.append(make_spark_converter(numbers(spark))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len({dataset.cache_dir_url for dataset in made}) == 1


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:  # The last byte of the footer, before its length and the closing magic.
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])


@pytest.mark.parametrize(
    ("how", "message"), [("deleted", "is gone"), ("truncated", "bytes"), ("altered", "was changed")]
)
@pytest.mark.usefixtures("cache_dir")
def test_a_damaged_file_is_named_at_opening(spark, how, message):
    dataset = make_spark_converter(numbers(spark))
    last = max(directory_of(dataset).glob("*.parquet"))
    damage(last, how)
    with (
        pytest.raises(DatasetError, match=f"{last.name}.*{message}"),
        dataset.make_torch_dataloader(),
    ):
        pass
    with pytest.raises(DatasetError, match=last.name):
        make_spark_converter(dataset.cache_dir_url)


@pytest.mark.usefixtures("cache_dir")
def test_a_conversion_that_never_finished_is_no_data_set(spark):
    dataset = make_spark_converter(numbers(spark))
    (directory_of(dataset) / MANIFEST_NAME).unlink()
    for use in (
        lambda: make_spark_converter(dataset.cache_dir_url),
        lambda: dataset.make_torch_dataloader().__enter__(),
    ):
        with pytest.raises(NoManifestError, match=f"has no {MANIFEST_NAME}"):
            use()


CRASH = """
import os, sys
from pyspark.sql import SparkSession
from sparkdl_runner.data import make_spark_converter

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "petastorm.spark.converter.parentCacheDirUrl", sys.argv[1]).getOrCreate()
print(make_spark_converter(spark.range(5)).cache_dir_url, flush=True)
if sys.argv[2] == "crash":
    os.kill(os.getpid(), 9)
"""


def run_child(parent: Path, end: str) -> subprocess.CompletedProcess:
    arguments = [sys.executable, "-c", CRASH, f"file://{parent}", end]
    return subprocess.run(arguments, capture_output=True, text=True)


@pytest.mark.one_lane
def test_exit_deletes_and_a_sweep_removes_what_a_crash_left(tmp_path):
    parent = tmp_path / "cache"
    child = run_child(parent, "exit")
    assert child.returncode == 0, child.stderr
    assert f"file://{parent}/" in child.stdout
    assert list(parent.iterdir()) == []

    (parent / "users own").mkdir()
    child = run_child(parent, "crash")
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(list(parent.rglob("*.parquet"))) >= 1
    (marked,) = parent.glob("sparkdl_runner-*")
    deadline = time.monotonic() + 300  # Its JVM may still be writing its last words.
    while not (removed := sweep_leftovers(f"file://{parent}")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert removed == [f"file://{marked}"]
    assert [path.name for path in parent.iterdir()] == ["users own"]


def test_the_marker_says_nothing_secret(spark, cache_dir):
    make_spark_converter(numbers(spark))
    (marker,) = cache_dir.glob("*/_sparkdl_runner.json")
    assert set(json.loads(marker.read_text())) == {
        "directory",
        "application_id",
        "hostname",
        "boot_id",
        "pid_namespace",
        "pid",
        "started_ticks",
        "created_unix_seconds",
    }
