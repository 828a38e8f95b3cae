"""What a DataFrame of Spark Connect reads: found in the plan that its client would send.

There is no JVM to ask beside the client, and a server resolves names, views and the clock anew
each time. So few sources count as known: files that are read by path, and rows in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sparkdl_runner.data.errors import ConversionError

MOST_PLAN_BYTES = 96 << 20
"""A server takes messages of 128 MiB, and runs out of memory by some that are larger."""

_OWN_ROWS = (
    "range",
    "local_relation",
    "cached_local_relation",
    "chunked_cached_local_relation",
)
"""Leaves of a plan that contain their rows."""

_FILES = ("avro", "binaryfile", "csv", "image", "json", "libsvm", "orc", "parquet", "text", "xml")
"""Formats whose rows are those of the files that Spark lists, and of nothing else."""

_NEVER_SAME = {
    *("current_date", "current_time", "current_timestamp", "localtimestamp", "now", "today"),
    *("curdate", "curtime", "unix_timestamp", "current_timezone", "version"),
    *("current_catalog", "current_database", "current_schema"),
    *("current_user", "session_user", "user"),
    *("rand", "randn", "random", "randstr", "shuffle", "uniform", "uuid"),
    *("java_method", "reflect", "try_reflect"),
}
"""Functions of the moment, of the session and its user, and of chance."""

_LOOKED_UP = {
    "CallFunction": "a function by its name",
    "Expression.ExpressionString": "an expression in SQL",
    "Read.NamedTable": "a table by its name",
}
"""What a server looks up or works out anew, by the message of the plan that holds it."""

_FUNCTIONS = ("CommonInlineUserDefinedFunction", "Expression.UnresolvedFunction")


class FileRead(NamedTuple):
    """A read of files by path, as ``spark.read`` takes it."""

    paths: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


class Reads(NamedTuple):
    """The sources of a plan."""

    files: tuple[FileRead, ...]
    unknown: str | None
    """The first source that may give other rows each time."""


def reads_of(df: Any) -> Reads:
    """Looks through a DataFrame's plan; asks the server for its default format at most."""
    spark, reads = df.sparkSession, []
    # Not to_proto, whose message may be compressed.
    for message in _messages(df._plan.plan(spark.client)):
        kind = message.DESCRIPTOR.full_name.removeprefix("spark.connect.")
        if kind == "Read.DataSource":
            name = (message.format or spark.conf.get("spark.sql.sources.default")).lower()
            if name not in _FILES:
                return Reads((), f"the data source {name!r}")
            options = sorted(
                option for option in message.options.items() if option[0].lower() != "basepath"
            )
            reads.append(FileRead(tuple(message.paths), tuple(options)))
        elif kind in _LOOKED_UP:
            return Reads((), _LOOKED_UP[kind])
        elif kind in _FUNCTIONS and _may_differ(message):
            return Reads((), f"the function {message.function_name!r}")
        elif kind == "Relation" and not any(map(_is_relation, _messages_below(message))):
            leaf = message.WhichOneof("rel_type")
            if leaf not in (*_OWN_ROWS, "read"):
                return Reads((), f"what Spark Connect calls {leaf!r}")
    return Reads(tuple(dict.fromkeys(reads)), None)


def list_files(spark: Any, read: FileRead) -> list[tuple[str, int, int]]:
    """The path, size and time of modification, in milliseconds, of all files that a read may take.

    The server lists them by the same paths and options, and opens none. A folder below one that is
    read is listed as well: at worst, a conversion is made anew without need.
    """
    from pyspark.sql import functions as F

    options = {**dict(read.options), "recursiveFileLookup": "true"}
    files = spark.read.format("binaryFile").options(**options).load(list(read.paths) or None)
    time = F.unix_millis("modificationTime").alias("time")
    return [tuple(row) for row in files.select("path", "length", time).collect()]


def check_plan(df: Any) -> None:
    """Refuses what a server cannot plan: too large a message, or a path that it does not see.

    Raises:
        ConversionError: One of the two.
        Exception: Whatever else the server has against the plan.
    """
    size_bytes = df._plan.plan(df.sparkSession.client).ByteSize()
    if size_bytes > MOST_PLAN_BYTES:
        raise ConversionError(
            f"The DataFrame's plan takes {size_bytes / 1e6:,.0f} MB, since functions or rows in it "
            f"are large, and Spark Connect carries {MOST_PLAN_BYTES / 1e6:,.0f} MB. Write it to "
            "files where Spark reads them, part by part, and convert those."
        )
    try:
        df.schema  # noqa: B018 - asking is the test
    except Exception as error:
        if "[PATH_NOT_FOUND]" not in str(error):
            raise
        raise ConversionError(
            "The Spark Connect server does not find a path that the DataFrame reads "
            f"({str(error).splitlines()[0]}). A path is one of the server's hosts, not of this "
            "one: put the files on storage that the server reads, or give make_spark_converter "
            "the folder's path in place of a DataFrame, and train on this host with a negative "
            "num_proc."
        ) from error


def _may_differ(function: Any) -> bool:
    """Whether a function may give another value for the same arguments."""
    if hasattr(function, "deterministic"):
        return not function.deterministic
    return function.is_user_defined_function or function.function_name.lower() in _NEVER_SAME


def _is_relation(message: Any) -> bool:
    return str(message.DESCRIPTOR.full_name) == "spark.connect.Relation"


def _messages(message: Any) -> Iterator[Any]:
    """A message, and all that it holds at any depth."""
    yield message
    yield from _messages_below(message)


def _messages_below(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inner = value.values() if isinstance(value, Mapping) else value
        for inner_value in [value] if hasattr(value, "ListFields") else inner:
            if hasattr(inner_value, "ListFields"):  # Else it is the value of a map of texts.
                yield from _messages(inner_value)
