"""Where conversions go, and that an equal one is made once."""

from __future__ import annotations

import gc
import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from parquet_sets import numbered, one

from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.convert import sources
from sparkdl_runner.data.convert.cache import ConversionCache, Hold
from sparkdl_runner.data.convert.sources import Request, SourceFile, Sources, _parse
from sparkdl_runner.data.convert.spark_settings import refuse_encryption
from sparkdl_runner.data.dataset import leftovers, place
from sparkdl_runner.data.dataset.leftovers import process_directory
from sparkdl_runner.data.dataset.place import (
    PARENT_CACHE_DIR_URL_CONF,
    directory_url,
    parent_cache_dir_url,
)
from sparkdl_runner.data.remote.disk_cache import DiskCache


class FakeSpark:
    def __init__(self, default_fs: str = "file:///", **conf: str) -> None:
        self.conf = {name.replace("__", "."): value for name, value in conf.items()}
        self._jsc = self
        self.default_fs = default_fs

    def hadoopConfiguration(self):  # noqa: N802 - Spark's name
        return {"fs.defaultFS": self.default_fs}


def configured(url: str) -> FakeSpark:
    spark = FakeSpark(spark__master="yarn")
    spark.conf[PARENT_CACHE_DIR_URL_CONF] = url
    return spark


def test_the_setting_wins():
    assert parent_cache_dir_url(configured("/Volumes/c/s/v/")) == "dbfs:/Volumes/c/s/v"
    with pytest.raises(ValueError, match=f"{PARENT_CACHE_DIR_URL_CONF}: .*no scheme"):
        parent_cache_dir_url(configured("/tmp/cache"))


def test_a_plain_path_is_a_file_url_where_there_is_one_host(monkeypatch, tmp_path):
    one(tmp_path / "a table", numbered(6))
    assert len(make_spark_converter(str(tmp_path / "a table"))) == 6
    converter = make_spark_converter(tmp_path / "a table" / ".")
    assert converter.cache_dir_url == f"file://{tmp_path}/a table"

    local = FakeSpark(spark__master="local[2]")
    assert directory_url("/data//set/", local) == "file:///data/set"
    local.conf[PARENT_CACHE_DIR_URL_CONF] = "/data/cache"
    assert parent_cache_dir_url(local) == "file:///data/cache"
    others = [FakeSpark(spark__master="yarn"), FakeSpark("hdfs://n/", spark__master="local[2]")]
    for spark in others:
        with pytest.raises(ValueError, match="no scheme"):
            directory_url("/data/set", spark)
    with pytest.raises(ValueError, match="no scheme"):
        directory_url("data/set", local)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.0")
    with pytest.raises(ValueError, match="no scheme"):
        directory_url("/data/set", None)


def test_on_one_machine_it_is_the_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for master in ("local", "local[2]", "local[*]", "local-cluster[2,1,1024]"):
        url = parent_cache_dir_url(FakeSpark(spark__master=master))
        assert url.startswith(f"file://{tmp_path}/sparkdl_runner-cache-")
        assert stat.S_IMODE(Path(url.removeprefix("file://")).stat().st_mode) == 0o700


def test_a_cache_of_row_groups_that_is_full_removes_no_conversion(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parent = parent_cache_dir_url(FakeSpark(spark__master="local"))
    table = Path(parent.removeprefix("file://")) / "table"
    one(table, numbered(6))
    cache = DiskCache(tmp_path, 10, "another")
    cache.get_or_fetch("key", lambda: memoryview(bytes(11)))
    cache.close()
    assert len(make_spark_converter(table)) == 6


def test_on_a_cluster_it_is_shared_or_asked_for(monkeypatch):
    url = parent_cache_dir_url(FakeSpark("hdfs://name:9000/", spark__master="yarn"))
    assert url.startswith("hdfs://name:9000/tmp/sparkdl_runner-cache-")
    with pytest.raises(ValueError, match=PARENT_CACHE_DIR_URL_CONF):
        parent_cache_dir_url(FakeSpark(spark__master="spark://host:7077"))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.0")
    with pytest.raises(ValueError, match="dbfs:/Volumes"):
        parent_cache_dir_url(FakeSpark("dbfs:/", spark__master="local[8]"))


def test_through_spark_connect_nobody_knows_what_local_means():
    spark = FakeSpark(spark__master="local[2]")
    del spark._jsc
    with pytest.raises(ValueError, match=PARENT_CACHE_DIR_URL_CONF):
        parent_cache_dir_url(spark)


class Serverless(FakeSpark):
    """Databricks' serverless compute, which refuses to read or set most settings."""

    def get(self, name, default=None):
        raise RuntimeError(f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available.")

    @property
    def conf(self):
        return self

    @conf.setter
    def conf(self, given):
        pass


def test_a_setting_that_nobody_may_read_is_not_set():
    with pytest.raises(ValueError, match=r"or name one by write_conversion\(df, url\)"):
        parent_cache_dir_url(Serverless("file:///"))
    assert place.setting(Serverless(), "spark.sql.caseSensitive") is None
    refuse_encryption(Serverless())
    broken = Serverless()
    broken.get = lambda name, default: 1 / 0
    with pytest.raises(ZeroDivisionError):
        place.setting(broken, "spark.master")


def test_a_process_makes_one_directory_and_sweeps_once(tmp_path, monkeypatch):
    swept = []
    monkeypatch.setattr(
        "sparkdl_runner.data.dataset.leftovers.sweep_leftovers",
        lambda url, **options: swept.append(url) or [],
    )
    parent = f"file://{tmp_path}/cache"
    first = process_directory(parent, "app")
    assert process_directory(parent, "app") == first
    assert swept == [parent]
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(("private", "mode"), [(True, 0o700), (False, 0o755)])
def test_where_one_user_reads_and_writes_nobody_else_does(tmp_path, private, mode):
    before = os.umask(0o022)
    try:
        url = process_directory(f"file://{tmp_path}/cache", "app", private=private)
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(url.removeprefix("file://")).stat().st_mode) == mode


NO_FILES = Sources()


class FakeFrame:
    """As much of a DataFrame as the cache looks at."""

    def __init__(
        self, plan: str, names: str = "a", reads: Sources = NO_FILES, rewritten: str | None = None
    ) -> None:
        self.plan, self.names, self.reads, self.rewritten = plan, names, reads, rewritten
        self.schema = self

    def json(self) -> str:
        return self.names

    def sameSemantics(self, other: FakeFrame) -> bool:  # noqa: N802 - Spark's name
        return self.plan == other.plan


@pytest.fixture(autouse=True)
def _without_plans(monkeypatch):
    monkeypatch.setattr(sources, "sources_of", lambda df: df.reads)
    monkeypatch.setattr(sources, "rewritten_since", lambda df, sources: df.rewritten)


def reading(name: str, size: int = 3, time: int = 7) -> Sources:
    return Sources(files=frozenset([SourceFile(name, size, time)]))


class Counting:
    def __init__(self) -> None:
        self.cache: ConversionCache = ConversionCache()
        self.calls = 0
        self.holds: list[Hold] = []

    def __call__(self, df, settings=(), valid=True):
        def convert():
            self.calls += 1
            return f"result {self.calls}"

        request = Request.of(df, *settings)
        self.holds.append(self.cache.get_or_convert(request, convert, lambda result: valid))
        return self.holds[-1].result


def test_equal_is_plan_names_files_and_settings():
    count = Counting()
    df = FakeFrame("p", reads=reading("f"))
    first = count(df)
    assert count(FakeFrame("p", reads=reading("f"))) == first
    others = [
        (FakeFrame("q", reads=reading("f")), ()),
        (FakeFrame("p", names="b", reads=reading("f")), ()),
        (FakeFrame("p", reads=reading("g")), ()),
        (FakeFrame("p", reads=reading("f", size=4)), ()),
        (FakeFrame("p", reads=reading("f", time=8)), ()),
        (df, ("snappy",)),
    ]
    assert len({first, *(count(df, settings) for df, settings in others)}) == 7
    assert count.calls == 7


def test_what_may_have_changed_unseen_is_converted_again_and_told(caplog):
    count = Counting()
    table = FakeFrame("p", reads=Sources(unknown="JDBCRelation"))
    with caplog.at_level(logging.WARNING):
        assert count(table) == "result 1"
        assert not caplog.records
        assert count(table) == "result 2"
    assert "reads from JDBCRelation" in caplog.text
    listed = FakeFrame("q", reads=reading("f"))
    assert count(listed) == count(listed)
    listed.rewritten = "file:/f"
    assert count(listed) == "result 4"
    assert "file:/f was written again after Spark listed it" in caplog.text


def test_files_as_hadoop_prints_them():
    status = (
        "LocatedFileStatus{path=s3a://b/a; b=1.csv; isDirectory=false; length=8; replication=1; "
        "blocksize=33554432; modification_time=1795360216005; access_time=0; owner=; group=}"
    )
    expected = SourceFile("s3a://b/a; b=1.csv", 8, 1795360216005)
    assert _parse(f"PartitionDirectory([empty row],List({status}, {status}))") == [expected] * 2


def test_what_is_no_longer_there_is_made_again():
    count = Counting()
    first = count(FakeFrame("p"))
    second = count(FakeFrame("p"), valid=False)
    assert first != second == count(FakeFrame("p"))


def test_a_result_stays_until_its_last_holder_lets_go():
    count = Counting()
    result = count(FakeFrame("p"))
    assert count(FakeFrame("p")) == count(FakeFrame("p")) == result
    first, second, third = count.holds
    assert not count.cache.release(first)
    assert not count.cache.release(first), "one holder cannot let go for another"
    assert count(FakeFrame("p")) == result
    count.holds.clear()
    del third  # Forgotten, as is the one just made.
    gc.collect()
    assert count.cache.release(second)
    assert count(FakeFrame("p")) != result, "its files are being deleted"


def test_a_failure_is_told_to_all_who_wait_and_then_tried_again():
    cache: ConversionCache = ConversionCache()
    started, go = threading.Event(), threading.Event()
    errors = []

    def fail():
        started.set()
        go.wait()
        raise OSError("full")

    def ask(convert):
        try:
            cache.get_or_convert(Request.of(FakeFrame("p")), convert, lambda result: True)
        except OSError as error:
            errors.append(str(error))

    first = threading.Thread(target=ask, args=(fail,))
    first.start()
    started.wait()
    second = threading.Thread(target=ask, args=(lambda: pytest.fail("converted twice"),))
    second.start()
    while second.is_alive() and not cache._entries[0].future._condition._waiters:
        pass
    go.set()
    first.join()
    second.join()
    assert errors == ["full", "full"]
    request = Request.of(FakeFrame("p"))
    assert cache.get_or_convert(request, lambda: "fine", lambda r: True).result == "fine"


def test_a_fork_has_a_directory_of_its_own_and_leaves_its_parents(tmp_path, monkeypatch):
    parent = f"file://{tmp_path}/cache"
    first = process_directory(parent, "app")
    pid = os.getpid()
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: pid + 1)
        second = process_directory(parent, "app")
        assert second != first
        assert process_directory(parent, "app") == second
        # The handlers that it has of its parent are called at its end as well.
        leftovers._delete_at_exit(first, None, pid)
    assert (tmp_path / "cache" / first.rpartition("/")[2]).is_dir()
    assert process_directory(parent, "app") == first
    leftovers._delete_at_exit(first, None, pid)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [second.rpartition("/")[2]]


@pytest.mark.parametrize("given", ["file:///orders", object()])
def test_keep_hours_names_what_is_there_instead(given):
    with pytest.raises(
        TypeError, match=r"write_conversion\(df, url\), .*make_spark_converter\(url"
    ):
        make_spark_converter(given, keep_hours=24)
