"""Writes scores to a table or a folder, so that an unfinished result never looks complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs.scoring.failure import cause
from sparkdl_runner.jobs.scoring.overwriting import BESIDE_PREFIX, overwrite
from sparkdl_runner.jobs.scoring.settings import ScoreSettings
from sparkdl_runner.jobs.spark import storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# With this, Spark 4.3 passes the file's columns to the UDF as Arrow, and fails at vectors. Older
# versions ignore the setting.
_COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"

# Files that Spark and Databricks leave in a folder of Parquet files, and those of an overwrite.
_SPARKS_FILES = re.compile(
    r"[^_.].*\.parquet|\..*\.crc|_SUCCESS|_metadata|_common_metadata|_(committed|started)_\d+"
)
_SPARKS_FOLDERS = re.compile(rf"_temporary|\.spark-staging-.*|{BESIDE_PREFIX}.*")


def check_output(settings: ScoreSettings, spark: SparkSession) -> None:
    """Checks that the scores can be written.

    Raises:
        ConfigError: Something is there already, or the folder is not writable.
    """
    if settings.is_table:
        if settings.mode == "error" and spark.catalog.tableExists(settings.output):
            raise ConfigError(
                f"there is a table {settings.output} already: choose another output, or --mode "
                "overwrite or append."
            )
        return
    if settings.mode == "overwrite" and settings.format != "delta":
        _check_replaceable(settings.output, storage.held_by(spark, settings.output))
    if settings.mode == "error" and storage.held_by(spark, settings.output):
        raise ConfigError(
            f"there are files in {settings.output} already: choose another output, or --mode "
            "overwrite or append."
        )
    storage.check_writable(spark, settings.output)


def check_columns(settings: ScoreSettings, spark: SparkSession, scored: DataFrame) -> None:
    """Checks that what is appended has the columns of what is there: Spark mixes files of any.

    Raises:
        ConfigError: It has others.
    """
    from pyspark.errors import AnalysisException

    if settings.mode != "append":
        return
    try:
        if settings.is_table:
            there = spark.table(settings.output)
        else:
            there = spark.read.format(settings.format or "parquet").load(settings.output)
    except AnalysisException:
        return  # There is nothing yet.
    old, new = (
        {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for frame in (there, scored)
    )
    if old != new:
        others = sorted({*old.items()} ^ {*new.items()})
        name = others[0][0]
        raise ConfigError(
            f"{redact(settings.output)} has other columns than the scores: {name!r} is "
            f"{old.get(name, 'not there')}, and {new.get(name, 'missing')} in the scores. Choose "
            "another output, or --mode overwrite."
        )


def _check_replaceable(output: str, held: dict[str, bool]) -> None:
    """Refuses to overwrite a folder that holds other files: it may have been named by mistake."""
    if "_delta_log" in held:
        raise ConfigError(f"{redact(output)} is a Delta table: overwrite it with --format delta.")
    others = [
        name
        for name, is_folder in held.items()
        if not (_SPARKS_FOLDERS if is_folder else _SPARKS_FILES).fullmatch(name)
    ]
    if others:
        raise ConfigError(
            f"{redact(output)} holds {min(others)}, which is no Parquet file that Spark wrote, so "
            "it is not overwritten: choose another output."
        )


def write_scores(settings: ScoreSettings, spark: SparkSession, scored: DataFrame) -> None:
    """Scores and writes.

    Raises:
        ConfigError: The rows are read from what was to be overwritten.
        RunnerError: It failed.
    """
    from sparkdl_runner.data.convert.permanent import OccupiedError, check_apart

    if settings.mode == "overwrite" and not settings.is_table and settings.format != "delta":
        try:
            check_apart(scored, storage.qualified(settings.output, spark))
        except OccupiedError as error:
            raise ConfigError(str(error)) from None
    is_new = not settings.is_table and not storage.exists(spark, settings.output)
    try:
        with _plain_input(spark):
            _write(settings, spark, scored)
    except RunnerError:
        raise
    except Exception as error:
        if is_new:
            with suppress(Exception):  # It must not hide why nothing was written.
                storage.delete_if_empty(*storage.open_path(spark, settings.output))
        raise RunnerError(f"The scores were not written: {cause(error)}.") from error


def _write(settings: ScoreSettings, spark: SparkSession, scored: DataFrame) -> None:
    writer = scored.write.mode(settings.mode)
    form = settings.format
    if settings.is_table:
        (writer if form is None else writer.format(form)).saveAsTable(settings.output)
    elif form == "delta" or settings.mode != "overwrite":
        writer.format(form or "parquet").save(settings.output)
    else:
        overwrite(spark, settings.output, lambda place: scored.write.parquet(place))


@contextmanager
def _plain_input(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(_COLUMNAR_INPUT, None)
    spark.conf.set(_COLUMNAR_INPUT, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_COLUMNAR_INPUT)
        else:
            spark.conf.set(_COLUMNAR_INPUT, before)
