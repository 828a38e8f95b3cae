"""A conversion that stays is overwritten by Spark's own writer, which fails or is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import functions as F

from sparkdl_runner.data import (
    ConversionError,
    DatasetError,
    make_spark_converter,
    write_conversion,
)
from sparkdl_runner.data.consumers.petastorm.engine import obstacle
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

pytestmark = pytest.mark.integration


def ids(url: str, **arguments: object) -> list[int]:
    converter = make_spark_converter(url)
    with converter.make_torch_dataloader(1, num_epochs=1, **arguments) as loader:
        return sorted(batch["id"].item() for batch in loader)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_conversion_is_overwritten_and_nothing_of_the_earlier_one_is_left(spark, tmp_path):
    folder, url = tmp_path / "orders", f"file://{tmp_path}/orders"
    for rows in (4, 6):
        made = write_conversion(spark.range(rows), url, overwrite=True)
        assert made.file_urls == make_spark_converter(url).file_urls
        assert len(made) == rows
        assert ids(url) == list(range(rows))
        assert spark.read.parquet(*made.file_urls).count() == rows
        (subfolder,) = folder.glob("_conversion-*")
        assert {path.parts[0] for path in map(Path, files(folder))} == {
            MANIFEST_NAME,
            subfolder.name,
        }
    if obstacle() is None:
        assert ids(url, engine="petastorm") == list(range(6))


@pytest.mark.parametrize("there", [True, False])
def test_a_writer_that_fails_leaves_what_was_there(spark, tmp_path, there):
    @F.udf("long")
    def fragile(value):
        if value == 7:
            raise ArithmeticError("seven is too much")
        return value

    folder, url = tmp_path / "orders", f"file://{tmp_path}/orders"
    if there:
        write_conversion(spark.range(4), url)
    before = files(folder)
    with pytest.raises(ConversionError, match="Spark could not write the conversion"):
        write_conversion(spark.range(0, 8, 1, 2).select(fragile("id")), url, overwrite=True)
    nulls = spark.range(4).select(F.when(F.col("id") > 1, F.col("id")).alias("id"))
    with pytest.raises(DatasetError, match="There are nulls in column 'id'"):
        write_conversion(nulls, url, overwrite=True)
    assert files(folder) == before
    if there:
        assert ids(url) == list(range(4))
    else:
        assert not folder.exists()


KILLED = """
import os, signal, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sparkdl_runner.data import write_conversion

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.sparkContext._gateway.proc.pid, flush=True)
driver = os.getpid()

@F.udf("long")
def kills(value):
    if value == 7:
        os.kill(driver, signal.SIGKILL)
    return value

# One file is written whole before the other is begun.
rows = spark.range(0, 8, 1, 2).select(kills("id").alias("id"))
write_conversion(rows, sys.argv[1], overwrite=True)
"""


@pytest.mark.parametrize("there", [True, pytest.param(False, marks=pytest.mark.one_lane)])
def test_a_writer_that_is_killed_leaves_what_was_there_and_the_next_one_mends_it(
    spark, tmp_path, there
):
    folder, url = tmp_path / "orders", f"file://{tmp_path}/orders"
    if there:
        write_conversion(spark.range(4), url)
    child = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    java = int(child.stdout.split()[0])
    with suppress(psutil.NoSuchProcess):  # It may still be writing its last words.
        psutil.Process(java).wait(300)
    assert len(list(folder.glob("_conversion-*"))) == 1 + there
    if there:
        assert ids(url) == list(range(4))
    else:
        with pytest.raises(DatasetError, match=r"holds no Parquet file"):
            make_spark_converter(url)
        with pytest.raises(ConversionError, match="There are files in"):
            write_conversion(spark.range(5), url)
    write_conversion(spark.range(5), url, overwrite=True)
    assert ids(url) == list(range(5))
    assert len(list(folder.glob("_conversion-*"))) == 1


def test_a_training_that_reads_while_it_is_overwritten_never_mixes(spark, tmp_path):
    url = f"file://{tmp_path}/orders"
    before = write_conversion(spark.range(0, 40, 1, 20), url)
    with before.make_torch_dataloader(1, num_epochs=1, workers_count=1) as loader:
        batches = iter(loader)
        seen = [next(batches)["id"].item()]
        write_conversion(spark.range(100, 140), url, overwrite=True)
        with suppress(DatasetError):  # It may have read all of it ahead.
            seen.extend(batch["id"].item() for batch in batches)
    assert set(seen) <= set(range(40))
    with (
        pytest.raises(DatasetError, match="was overwritten by another one"),
        before.make_torch_dataloader(1),
    ):
        pass
    assert ids(url) == list(range(100, 140))
