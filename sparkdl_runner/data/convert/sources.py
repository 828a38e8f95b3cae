"""Whether two conversions would give the same: by plan, settings, and the files that are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.data.convert.connect_plan import list_files, reads_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OWN_ROWS = ("Range", "LocalRelation", "OneRowRelation", "EmptyRelation", "CommandResult")
"""Leaves of a plan that contain their rows."""

_READING_RDD = re.compile(r"\b(\w*(?:Hadoop|FileScan|JDBC|DataSource)RDD)\b")
"""Finds, in the lineage of an RDD, one that reads its source whenever it is computed."""

_FILE_STATUS = re.compile(
    r"path=(?P<path>.*?); isDirectory=\w+; length=(?P<size>\d+);"
    r".*?; modification_time=(?P<time>\d+);"
)
"""A file in the text of Hadoop's ``FileStatus``. One call to Java gives all files, and not four
calls for each."""


class SourceFile(NamedTuple):
    """A file as Spark listed it. One that is written again has another size or time."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything besides its plan that decides which rows a DataFrame has."""

    files: frozenset[SourceFile] = frozenset()
    """The files as Spark listed them when the DataFrame was read."""
    may_be_stale: frozenset[SourceFile] = frozenset()
    """Those of ``files`` that may be written again in place. Table formats never do that."""
    settings: frozenset[tuple[str, str]] = frozenset()
    """Spark's settings, where an equal plan may mean something else by others."""
    unknown: str | None = None
    """A source that may give other rows each time without notice, such as JDBC."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A DataFrame to convert, and all else that the result depends on."""

    df: DataFrame
    settings: tuple[Any, ...]
    sources: Sources

    @classmethod
    def of(cls, df: DataFrame, *settings: Any) -> Request:
        """Looks at what the DataFrame reads from; starts no job."""
        return cls(df=df, settings=(*settings, df.schema.json()), sources=sources_of(df))

    def is_equal(self, other: Request) -> bool:
        """Whether both have the same plan, settings, column names and types, and input files.

        ``DataFrame.sameSemantics`` compares neither names nor files.
        """
        mine, theirs = self._key(), other._key()
        return mine == theirs and self.df.sameSemantics(other.df)

    def _key(self) -> tuple[Any, ...]:
        return self.settings, self.sources.files, self.sources.settings

    def change(self) -> str | None:
        """Why an earlier conversion of an equal DataFrame may have other rows, or None."""
        if self.sources.unknown is not None:
            return (
                "An equal DataFrame was converted before, and this one is converted again: it "
                f"reads from {self.sources.unknown}, of which nobody can tell whether its rows "
                "have changed. Where they have not, go on with the earlier converter."
            )
        rewritten = rewritten_since(self.df, self.sources)
        if rewritten is None:
            return None
        return (
            f"{redact(rewritten)} was written again after Spark listed it for this DataFrame, "
            "which is therefore converted again. Spark may read only a part of such a file: read "
            "the DataFrame from it again."
        )


def sources_of(df: DataFrame) -> Sources:
    """Looks through the plan for what the DataFrame reads from; starts no job."""
    try:
        return _of_plan(df) if hasattr(df, "_jdf") else _of_connect(df)
    except Exception as error:
        # A plan that this runtime does not show cannot be compared, so it counts as changed.
        return Sources(unknown=f"a plan that cannot be looked into ({type(error).__name__})")


def rewritten_since(df: DataFrame, sources: Sources) -> str | None:
    """A file that was written again after Spark listed it, or None.

    A deleted file does not count: an earlier conversion is then all that is left of its rows.
    """
    folders = {file.path.rpartition("/")[0] for file in sources.may_be_stale}
    now = {file.path: file for folder in folders for file in _list(df, folder)}
    for file in sorted(sources.may_be_stale):
        if now.get(file.path, file) != file:
            return file.path
    return None


def _of_plan(df: DataFrame) -> Sources:
    query = df._jdf.queryExecution()
    jvm: Any = df.sparkSession._jvm
    clock = _object(jvm.org.apache.spark.sql.catalyst.trees, "TreePattern").CURRENT_LIKE()
    if query.analyzed().containsPattern(clock):
        return Sources(unknown="the current date, time or user")
    no_filter = _object(jvm.scala.collection.immutable, "Nil")
    plan = query.optimizedPlan()
    files: set[SourceFile] = set()
    may_be_stale: set[SourceFile] = set()
    for part in (plan, *elements(plan.subqueriesAll())):
        for leaf in elements(part.collectLeaves()):
            kind = leaf.getClass().getSimpleName()
            if kind in _OWN_ROWS:
                continue
            if kind == "LogicalRDD":
                reads = _READING_RDD.search(leaf.rdd().toDebugString())
                if reads is None:
                    continue
                return Sources(unknown=f"an RDD that reads each time (by {reads[1]})")
            if kind != "LogicalRelation":
                return Sources(unknown=kind)
            relation = leaf.relation()
            kind = relation.getClass().getSimpleName()
            if kind != "HadoopFsRelation":
                return Sources(unknown=kind)
            index = relation.location()
            listed = set(_parse(index.listFiles(no_filter, no_filter).mkString("\n")))
            if len(listed) != len(set(index.inputFiles())):
                return Sources(unknown=f"the files of {index.getClass().getSimpleName()}")
            files |= listed
            # Delta's and a streaming sink's own logs say which files count, and those stay.
            if index.getClass().getName().startswith("org.apache.spark.sql.execution.datasources."):
                may_be_stale |= listed
    return Sources(files=frozenset(files), may_be_stale=frozenset(may_be_stale))


def _of_connect(df: Any) -> Sources:
    """The files as the server lists them now: it lists them again whenever it reads."""
    reads, spark = reads_of(df), df.sparkSession
    if reads.unknown is not None:
        return Sources(unknown=reads.unknown)
    files = {SourceFile(*file) for read in reads.files for file in list_files(spark, read)}
    # A plan is resolved by the settings of that moment, such as the time zone.
    settings = frozenset(spark.conf.getAll.items())
    return Sources(files=frozenset(files), settings=settings)


def _list(df: DataFrame, folder: str) -> list[SourceFile]:
    """The files in a folder; empty if it cannot be listed."""
    spark: Any = df.sparkSession
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    try:
        statuses = path.getFileSystem(spark._jsc.hadoopConfiguration()).listStatus(path)
    except Exception:
        return []
    return _parse("\n".join(status.toString() for status in statuses))


def _parse(statuses: str) -> list[SourceFile]:
    return [
        SourceFile(status["path"], int(status["size"]), int(status["time"]))
        for status in _FILE_STATUS.finditer(statuses)
    ]


def elements(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _object(package: Any, name: str) -> Any:
    """A Scala ``object``, which Java reaches by its class."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
