"""Conversion through Spark Connect, where there are no Java objects to ask."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

pytestmark = pytest.mark.integration

CHILD = """
import sys
from pyspark.sql import SparkSession, functions as F
from sparkdl_runner.data import DatasetError, make_spark_converter

spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", f"file://{sys.argv[1]}")

def numbers():
    return spark.range(0, 20, 1, 2).select("id", F.array(F.col("id") * 1.5).alias("f"))

converter = make_spark_converter(numbers())
assert make_spark_converter(numbers()).cache_dir_url == converter.cache_dir_url
numbers().write.parquet(f"file://{sys.argv[1]}-table")
table = spark.read.parquet(f"file://{sys.argv[1]}-table")
assert make_spark_converter(table).cache_dir_url != make_spark_converter(table).cache_dir_url
assert converter.open()[0].column("f").list_lengths == (1,)
with converter.make_torch_dataloader(batch_size=5, num_epochs=1) as loader:
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(20))
try:
    make_spark_converter(spark.createDataFrame([([1.0],), ([None],)], "f array<float>"))
except DatasetError as error:
    print(error)
"""


def test_a_dataframe_of_spark_connect(tmp_path):
    if metadata.version("pyspark").startswith("3."):
        pytest.xfail("pip's pyspark 3.5 comes without a Spark Connect server")
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    assert "nulls in column 'f' (1)" in child.stdout
    assert not list(tmp_path.rglob("*.parquet")), "the end of the process deletes"
