"""``keep_hours``: another driver finds the conversion of an equal DataFrame, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.convert import cache
from sparkdl_runner.data.convert.keeping import key_of
from sparkdl_runner.data.convert.plan import plan_conversion
from sparkdl_runner.data.convert.sources import Request, elements

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cache_dir")]

ANOTHER_DRIVER = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from sparkdl_runner.data.convert.plan import plan_conversion
from sparkdl_runner.data.convert.keeping import key_of
from sparkdl_runner.data.convert.sources import Request
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for name, value in json.loads(sys.argv[2]).items():
    spark.conf.set(name, value)
df = spark.read.parquet(sys.argv[1]).where("id > 10").withColumn("x", F.col("id") + 1)
plan = plan_conversion(df, 1 << 25, None, "float32", False)
print("key", key_of(Request.of(df), plan.settings))
"""


def key(df: Any, dtype: str | None = "float32") -> str:
    plan = plan_conversion(df, 1 << 25, None, dtype, False)
    return key_of(Request.of(df), plan.settings)


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> str:
    path = f"{tmp_path}/source"
    spark.range(0, 100, 1, 2).select("id", F.col("id").cast("string").alias("t")).write.parquet(
        path
    )
    return path


@pytest.mark.one_lane
@pytest.mark.timeout(600)
def test_two_drivers_give_a_dataframe_the_same_name(spark: Any, source: str) -> None:
    conf = elements(spark._jsparkSession.conf().getAll().toSeq())
    settings = {pair._1(): pair._2() for pair in conf if pair._1().startswith("spark.sql.")}
    settings.pop("spark.sql.warehouse.dir", None)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_DRIVER, source, json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    df = spark.read.parquet(source).where("id > 10").withColumn("x", F.col("id") + 1)
    assert done.stdout.split()[-2:] == ["key", key(df)]


def test_another_session_finds_it(spark: Any, source: str, monkeypatch: Any) -> None:
    first = make_spark_converter(spark.read.parquet(source), keep_hours=1)
    first.delete()  # Gives up the use of it, and leaves it for others.
    monkeypatch.setattr(cache, "conversions", cache.ConversionCache())  # As in another process.
    again = make_spark_converter(spark.read.parquet(source), keep_hours=2)
    assert again.cache_dir_url == first.cache_dir_url
    with again.make_torch_dataloader(50, num_epochs=1, columns=["id"]) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(100))


def test_what_differs_has_another_name(spark: Any, source: str) -> None:
    df = spark.read.parquet(source).where("id > 10")
    assert key(df) == key(spark.read.parquet(source).where("id > 10"))
    strict, lenient = F.col("t").cast("int"), F.expr("try_cast(t AS int)")
    others = [
        key(spark.read.parquet(source).where("id > 11")),
        key(df.withColumnRenamed("id", "number")),
        key(df, dtype="float64"),
        key(df.withColumn("t", strict)),
        key(df.withColumn("t", lenient)),
        key(df.where("t LIKE ALL ('1%', '%2')")),
        key(df.where("t LIKE ALL ('1%', '%3')")),
        key(spark.read.option("mergeSchema", "true").parquet(source).where("id > 10")),
    ]
    spark.range(100, 110).select("id", F.lit("t").alias("t")).write.mode("append").parquet(source)
    others.append(key(spark.read.parquet(source).where("id > 10")))
    wide = df.select("id", *[F.lit(n).alias(f"c{n}") for n in range(60)])
    others += [key(wide), key(wide.withColumn("c50", F.lit(0)))]
    assert len({key(df), *others}) == 1 + len(others)


@pytest.mark.one_lane
def test_what_another_session_could_not_compare_is_refused(spark: Any, source: str) -> None:
    upper = F.udf(lambda text: text.upper())
    for df, part in (
        (spark.createDataFrame([(1,)], ["id"]), "LogicalRDD"),
        (spark.sql("VALUES 1, 2"), "LocalRelation"),
        (spark.read.parquet(source).select(upper("t").alias("t")), "PythonUDF"),
        (spark.read.parquet(source).select(F.current_timestamp().alias("now")), "current date"),
    ):
        with pytest.raises(ValueError, match=rf"{part}.*write_conversion"):
            make_spark_converter(df, keep_hours=1)
    with pytest.raises(ValueError, match="keep_hours must be 1 or more"):
        make_spark_converter(spark.range(3), keep_hours=0.1)
    with pytest.raises(TypeError, match="keep_hours is for a DataFrame"):
        make_spark_converter(f"file://{source}", keep_hours=3)
