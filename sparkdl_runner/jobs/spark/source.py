"""The source of a job's rows: a table, or files of a format that Spark reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.base.nearest import did_you_mean, nearest
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import Settings
from sparkdl_runner.jobs.spark import storage
from sparkdl_runner.jobs.spark.csv_files import CSV_OPTIONS, check_csv
from sparkdl_runner.launch.driver.spark import java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`)){0,2}")
_BY_ENDING = {".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
_FILE = (*_BY_ENDING, ".parquet")


def is_table(text: str) -> bool:
    """Whether a text names a table, in one to three parts, and not a file."""
    return _TABLE.fullmatch(text) is not None and not text.endswith(_FILE)


class Source(Settings):
    """A table or a path. A text is short for either: what holds a slash or a scheme is a path."""

    has_short_form: ClassVar[bool] = True

    table: str | None = None
    path: str | None = None
    format: Literal["parquet", "delta", "csv", "json", "orc"] | None = None
    """The format of the files; None: by the path's ending, else Parquet."""
    options: dict[str, str | int | float | bool] = pydantic.Field(default_factory=dict)
    """Options of Spark's reader; for CSV they are ``header`` and ``inferSchema`` if not given."""
    columns: list[str] | None = None
    """Which columns are read; None for all."""
    where: str | None = None
    """Which rows are read, as an SQL condition; None for all."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        return {"table" if is_table(given) else "path": given}

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.table is None) == (self.path is None):
            raise ValueError("give either a table or a path")
        if self.table is not None and (self.format or self.options):
            raise ValueError(f"the table {self.table} has a format of its own: leave it out")
        return self

    @property
    def place(self) -> str:
        """The source as the user writes it."""
        return f"table {self.table}" if self.table is not None else redact(self.path or "")

    @property
    def is_plain(self) -> bool:
        """Whether it may be a folder of Parquet files of which all rows and columns are wanted."""
        return (
            self.path is not None
            and self._form() in (None, "parquet")
            and not (self.options or self.columns or self.where)
        )

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns a DataFrame of it; no task has run then, or only what finds a schema.

        Raises:
            ConfigError: It is not there, or has no such columns, or cannot be read.
        """
        from pyspark.errors import AnalysisException

        try:
            frame = self._open(spark)
            columns = frame.columns  # A Spark Connect server looks now.
        except AnalysisException as error:
            raise ConfigError(self._why_not(spark, error)) from None
        except Exception as error:
            raise ConfigError(self._unreadable(java.cause(error))) from None
        if not columns:
            raise ConfigError(f"{self.place} is empty: it has no columns and no rows.")
        if self._form() == "csv":
            check_csv(frame, self.place, self.options, self.columns)
        unknown = [column for column in self.columns or [] if column not in columns]
        if unknown:
            near = did_you_mean(unknown[0], columns)
            raise ConfigError(f"{self.place} has no column {unknown[0]!r}{near}")
        try:
            kept = frame if self.where is None else frame.where(self.where)
            kept.schema  # noqa: B018 - as above
        except Exception as error:
            raise ConfigError(
                f"the condition {self.where!r} does not fit {self.place}: {java.cause(error)}."
            ) from None
        return (
            kept
            if self.columns is None
            else kept.select(*[f"`{column}`" for column in self.columns])
        )

    def _open(self, spark: SparkSession) -> DataFrame:
        if self.table is not None:
            return spark.table(self.table)
        from sparkdl_runner.data import make_spark_converter
        from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

        path = self.path or ""
        form = self._form()
        # Some filesystems raise where they are asked what is below a file.
        may_be_folder = form in (None, "parquet") and not _is_file(path, spark)
        if form is None:
            is_delta = may_be_folder and storage.exists(spark, f"{path}/_delta_log")
            form = "delta" if is_delta else "parquet"
        if form == "parquet" and may_be_folder and storage.exists(spark, f"{path}/{MANIFEST_NAME}"):
            url = storage.qualified(path, spark)
            files = make_spark_converter(url, allow_nulls=True).file_urls
            return spark.read.options(**self.options).parquet(*files)
        if storage.looks_itself(spark):  # Spark's own working folder is another one.
            path = storage.qualified(path, spark)
        reader = spark.read.format(form)
        if form == "csv":
            reader = reader.options(**CSV_OPTIONS)
        return reader.options(**self.options).load(path)

    def _form(self) -> str | None:
        """The format that is given, or that the path looks like; None if it looks like none."""
        path = self.path or ""
        by_ending = (form for end, form in _BY_ENDING.items() if path.endswith(end))
        return self.format or next(by_ending, None)

    def _why_not(self, spark: SparkSession, error: Exception) -> str:
        message = str(error)
        if self.table is not None and ("NOT_FOUND" in message or "not found" in message):
            near = _path_of_that_name(spark, self.table) or _nearest_table(spark, self.table)
            return f"there is no table {self.table}{near}"
        if "PATH_NOT_FOUND" in message:
            return f"there is nothing at {self.place}."
        if "UNABLE_TO_INFER_SCHEMA" in message:
            return f"there is no file to read in {self.place}.{self._other_formats()}"
        return self._unreadable(java.cause(error))

    def _unreadable(self, why: str) -> str:
        return f"Spark cannot read {self.place}: {why}.{self._other_formats()}"

    def _other_formats(self) -> str:
        if self.path is None or self._form() is not None:
            return ""
        return " Files are Parquet unless format says that they are csv, json, orc or delta."


def _is_file(path: str, spark: SparkSession) -> bool:
    """Whether it is one file. True also where this driver may not look but Spark may read."""
    try:
        return storage.is_file(path, spark)
    except ConfigError:
        return True


def _path_of_that_name(spark: SparkSession, table: str) -> str | None:
    """Advice if files have the table's name, since a path without a slash reads as a table."""
    try:
        is_there = storage.exists(spark, table)
    except ConfigError:
        return None
    if not is_there:
        return None
    return f"; there are files of that name: write ./{table}, since a path holds a slash."


def _nearest_table(spark: SparkSession, table: str) -> str:
    """The table of Spark's own catalog that was probably meant. This runs no Spark job."""
    database, _, name = table.rpartition(".")
    try:
        catalog = spark._jsparkSession.sessionState().catalog()
        tables = catalog.listTables(database or catalog.getCurrentDatabase())
        return nearest(name, [tables.apply(index).table() for index in range(tables.size())])
    except Exception:  # Some other catalog, which need not answer so.
        return "."
