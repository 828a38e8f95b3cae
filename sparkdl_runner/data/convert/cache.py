"""Which parent directory conversions go to, and which DataFrame was converted already."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sparkdl_runner.data.convert.sources import Sources, rewritten_since, sources_of
from sparkdl_runner.data.dataset.leftovers import make_marked_directory, sweep_leftovers
from sparkdl_runner.data.dataset.place import default_filesystem, directory_url
from sparkdl_runner.filesystem import StorageOptions, normalize_url, redact
from sparkdl_runner.private_folder import private_folder, user_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter

from sparkdl_runner.data.dataset.place import PARENT_CACHE_DIR_URL_CONF

_NAME = "sparkdl_runner-cache"

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def parent_cache_dir_url(spark: SparkSession) -> str:
    """Returns where this Spark application puts its conversions.

    That is ``petastorm.spark.converter.parentCacheDirUrl``, and where it is not set: a directory
    below the system's temporary one if all of Spark runs on this machine, or below ``/tmp`` of
    Hadoop's default filesystem if that is shared.

    Raises:
        ValueError: Neither is there, or the setting is not a URL.
    """
    configured = spark.conf.get(PARENT_CACHE_DIR_URL_CONF, None)
    if configured:
        try:
            return directory_url(configured, spark)
        except ValueError as error:
            raise ValueError(f"{PARENT_CACHE_DIR_URL_CONF}: {error}") from None
    master = spark.conf.get("spark.master", "") or ""
    on_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
    # Through Spark Connect, "local" is the server's word for the server's machine.
    is_here = getattr(spark, "_jsc", None) is not None
    if is_here and master.startswith("local") and not on_databricks:
        return normalize_url(f"file://{private_folder(_NAME)}")
    default = default_filesystem(spark)
    if default and not default.startswith("file:") and not on_databricks:
        return normalize_url(f"{default.rstrip('/')}/tmp/{_NAME}-{user_name()}")  # noqa: S108
    raise ValueError(
        "The executors of this cluster need a directory that they share with the ranks: set the "
        f"Spark setting {PARENT_CACHE_DIR_URL_CONF} to one, such as s3a://bucket/cache, "
        "abfss://container@account.dfs.core.windows.net/cache, dbfs:/Volumes/catalog/schema/volume "
        "or file:///mnt/shared/cache."
    )


_process_directories: dict[tuple[str, int], str] = {}
_process_directories_lock = threading.Lock()


def process_directory(
    parent_url: str,
    application_id: str,
    storage_options: StorageOptions | None = None,
    *,
    private: bool = False,
) -> str:
    """Returns this process's own directory below the parent, made and marked on first use.

    On first use, what processes that have ended left there is removed.

    Args:
        parent_url: The parent cache directory.
        application_id: Goes into the name.
        storage_options: As in :func:`~sparkdl_runner.filesystem.open_filesystem`.
        private: Whether a local one is made for this user alone, who then has to be the one who
            writes and reads it everywhere.

    Raises:
        OSError: The parent cannot be written.
    """
    key = (parent_url, os.getpid())
    with _process_directories_lock:
        if key not in _process_directories:
            url = make_marked_directory(
                parent_url, application_id, storage_options, private=private
            )
            _process_directories[key] = url
            for removed in sweep_leftovers(parent_url, storage_options=storage_options):
                _log.info("Removed %s, left by a process that has ended.", removed)
        return _process_directories[key]


@dataclass(eq=False)
class _Entry(Generic[_Result]):
    df: DataFrame
    key: tuple[Any, ...]
    future: Future[_Result] = field(default_factory=Future)
    holds: weakref.WeakSet[Hold] = field(default_factory=weakref.WeakSet)


@dataclass(eq=False)
class Hold:
    """One holder's claim to a conversion: it stays while anybody has one.

    A holder that is gone without a word, such as a notebook's variable that was assigned anew,
    takes its claim along.
    """

    entry: _Entry[Any]


class ConversionCache(Generic[_Result]):
    """Converts an equal DataFrame with equal settings once, also from several threads.

    Equal is: the same plan in the sense of ``DataFrame.sameSemantics``, the same column names and
    types (which that leaves out), and the same input files by name, size and time. What reads
    from anywhere else, such as JDBC, may give other rows each time, and is equal to nothing.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry[_Result]] = []
        self._lock = threading.Lock()

    def get_or_convert(
        self,
        df: DataFrame,
        settings: tuple[Any, ...],
        convert: Callable[[], _Result],
        is_valid: Callable[[_Result], bool],
    ) -> tuple[_Result, Hold]:
        """Returns the earlier result for an equal DataFrame, or that of ``convert()``.

        Args:
            df: What to convert.
            settings: Everything else that the result depends on.
            convert: Called without a lock; what it raises is raised to all who wait for it.
            is_valid: Whether an earlier result is still there.

        Returns:
            The result, and the claim to it, to be given to ``release``.
        """
        sources = sources_of(df)
        key = (*settings, df.schema.json(), sources.files)
        with self._lock:
            entry = self._find(df, key)
            if entry is not None and not self._is_current(entry, df, sources, is_valid):
                self._entries.remove(entry)
                entry = None
            ours = entry is None
            if entry is None:
                entry = _Entry(df, key)
                self._entries.append(entry)
            hold = Hold(entry)
            entry.holds.add(hold)
        if ours:
            try:
                entry.future.set_result(convert())
            except BaseException as error:
                with self._lock:
                    self._forget(entry)
                entry.future.set_exception(error)
                raise
        return entry.future.result(), hold

    def release(self, hold: Hold) -> bool:
        """Gives up a claim; True if nobody has another, and then the result is not given again."""
        entry = hold.entry
        with self._lock:
            entry.holds.discard(hold)
            if entry.holds:
                return False
            self._forget(entry)
            return True

    def _forget(self, entry: _Entry[_Result]) -> None:
        if entry in self._entries:
            self._entries.remove(entry)

    def _find(self, df: DataFrame, key: tuple[Any, ...]) -> _Entry[_Result] | None:
        for entry in self._entries:
            if entry.key == key and entry.df.sameSemantics(df):
                return entry
        return None

    def _is_current(
        self,
        entry: _Entry[_Result],
        df: DataFrame,
        sources: Sources,
        is_valid: Callable[[_Result], bool],
    ) -> bool:
        if sources.unknown is not None:
            _log.warning(
                "An equal DataFrame was converted before, and this one is converted again: it "
                "reads from %s, of which nobody can tell whether its rows have changed. Where "
                "they have not, go on with the earlier converter.",
                sources.unknown,
            )
            return False
        rewritten = rewritten_since(df, sources)
        if rewritten is not None:
            _log.warning(
                "%s was written again after Spark listed it for this DataFrame, which is therefore "
                "converted again. Spark may read only a part of such a file: read the DataFrame "
                "from it again.",
                redact(rewritten),
            )
            return False
        return not entry.future.done() or is_valid(entry.future.result())


conversions: ConversionCache[SparkDatasetConverter] = ConversionCache()
"""What this process has converted."""
