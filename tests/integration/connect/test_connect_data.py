"""Conversions through Spark Connect, where there are no Java objects to ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.data import ConversionError, DatasetError, make_spark_converter
from sparkdl_runner.data.convert import connect_plan, shared_folder
from sparkdl_runner.data.convert.sources import Request, sources_of
from sparkdl_runner.data.dataset.place import PARENT_CACHE_DIR_URL_CONF

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


@pytest.fixture
def spark(session, tmp_path):
    """The session, whose conversions go to a folder of the test's own."""
    session.conf.set(PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}/cache")
    yield session
    session.conf.unset(PARENT_CACHE_DIR_URL_CONF)


def write_table(spark, folder: Path, rows=20, by=()):
    from pyspark.sql import functions as F

    numbers = spark.range(0, rows, 1, 2).select("id", F.array(F.col("id") * 1.5).alias("f"))
    numbers.write.mode("overwrite").partitionBy(*by).parquet(folder.as_uri())
    return lambda: spark.read.parquet(folder.as_uri())


def test_a_table_is_converted_once_until_it_is_written_again(spark, tmp_path):
    table = write_table(spark, tmp_path / "table")
    with make_spark_converter(table()) as converter:
        assert make_spark_converter(table()).cache_dir_url == converter.cache_dir_url
        assert make_spark_converter(table().drop("id")).cache_dir_url != converter.cache_dir_url
        assert converter.open()[0].column("f").list_lengths == (1,)
        with converter.make_torch_dataloader(batch_size=5, num_epochs=1) as loader:
            assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(20))
        table = write_table(spark, tmp_path / "table")
        assert make_spark_converter(table()).cache_dir_url != converter.cache_dir_url


def test_an_equal_plan_means_something_else_in_another_time_zone(spark):
    def hours():
        from pyspark.sql import functions as F

        return Request.of(spark.range(2).select(F.hour(F.timestamp_seconds("id"))))

    before = hours()
    assert before.is_equal(hours())
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert not before.is_equal(hours())
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_what_a_plan_reads_is_known_by_its_leaves(spark, tmp_path):
    from pyspark.sql import functions as F

    folder = tmp_path / "table"
    table = write_table(spark, folder, 4, by=["id"])()
    own = spark.createDataFrame([(1,)], "id int")
    files = {
        (f"file:{path}", path.stat().st_size, path.stat().st_mtime_ns // 10**6)
        for path in folder.rglob("*.parquet")
    }
    one_day = spark.read.option("basePath", folder.as_uri()).parquet(f"{folder.as_uri()}/id=1")
    double = F.udf(lambda value: value * 2, "long")
    known = {
        "files": (table, files),
        "a column of a folder": (one_day, {one for one in files if "/id=1/" in one[0]}),
        "a join": (table.join(own, "id").where(F.col("id") > 0), files),
        "a subquery": (own.where(F.col("id") == table.select(F.max("id")).scalar()), files),
        "a function": (table.select(double("id")), files),
        "own rows": (own.union(spark.range(3)), set()),
    }
    for name, (df, expected) in known.items():
        found = sources_of(df)
        assert (found.unknown, found.files) == (None, expected), name
    table.createOrReplaceTempView("seen")
    unknown = {
        "table by its name": spark.table("seen"),
        "'sql'": spark.sql("select 1 as id"),
        "expression in SQL": table.where("id > 1"),
        "'rand'": table.select(F.rand(1)),
        "'current_date'": table.select(F.current_date()),
        "function by its name": table.select(F.call_function("abs", "id")),
        "'<lambda>'": table.select(F.udf(lambda value: value).asNondeterministic()("id")),
        "source 'jdbc'": spark.read.format("jdbc").options(url="jdbc:nowhere").load(),
        "AnalysisException": spark.read.csv("/nowhere"),
    }
    for text, df in unknown.items():
        assert text in (sources_of(df).unknown or "")
    spark.catalog.dropTempView("seen")


def test_what_nobody_can_vouch_for_is_converted_anew(spark, caplog):
    def numbers():
        return spark.sql("select 1 as id")

    with make_spark_converter(numbers()) as converter:
        assert make_spark_converter(numbers()).cache_dir_url != converter.cache_dir_url
    assert "reads from what Spark Connect calls 'sql'" in caplog.text


def test_nulls_are_named(spark):
    with pytest.raises(DatasetError, match=r"nulls in column 'f' \(1\)"):
        make_spark_converter(spark.createDataFrame([([1.0],), ([None],)], "f array<float>"))


def test_a_client_without_java_trains_on_its_own_machine(server):
    """As on Databricks' AI Runtime: rows from the server, and ranks beside the client."""
    folder = Path(sys.executable).parent
    assert not shutil.which("java", path=folder)
    left_out = ("JAVA_HOME", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")
    inherited = {name: text for name, text in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "compat" / "environment.py"],
        env={**inherited, "PATH": str(folder), "SPARK_REMOTE": server.url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data of a server, loader and checkpoint here: right" in done.stdout


def test_where_the_server_is_on_this_host_it_needs_no_setting(session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with make_spark_converter(session.range(3)) as converter:
        assert converter.cache_dir_url.startswith(f"file://{tmp_path}/sparkdl_runner-cache-")


def test_a_folder_that_the_server_does_not_see_is_told(spark, tmp_path, monkeypatch):
    with pytest.raises(ConversionError, match="does not find a path that the DataFrame reads"):
        make_spark_converter(spark.read.parquet((tmp_path / "nowhere").as_uri()))
    with make_spark_converter(spark.range(3)) as converter:
        shared_folder.refuse_unseen(spark, [converter])
        # As on another host: what this process sees is nowhere for the server.
        real = type(spark.read.format("text")).load
        monkeypatch.setattr(
            type(spark.read), "load", lambda self, path: real(self, f"{path}-of-another-host")
        )
        with pytest.raises(ConversionError, match="the Spark Connect server does not see it"):
            shared_folder.refuse_unseen(spark, [converter])
    monkeypatch.setattr(type(spark.read), "text", lambda self, path: self.format("text").load(path))
    with pytest.raises(ConversionError, match="is another folder on each host"):
        make_spark_converter(spark.range(4))
    assert not list(tmp_path.rglob("*.parquet")), "nothing was written before it was told"


def test_a_plan_that_no_server_takes_is_refused_before_it_is_sent(spark, monkeypatch):
    from pyspark.sql import functions as F

    monkeypatch.setattr(connect_plan, "MOST_PLAN_BYTES", 1 << 20)
    large = os.urandom(2 << 20)
    df = spark.range(3).select(F.udf(lambda value: len(large), "int")("id").alias("x"))
    monkeypatch.setattr(type(spark.client), "_analyze", lambda *a, **k: pytest.fail("it was sent"))
    with pytest.raises(ConversionError, match="plan takes 2 MB"):
        make_spark_converter(df)
