"""The folder of a saved model or estimator, in any store that Spark writes to.

A classic session copies files by Hadoop's classes. Through Spark Connect only tables are written:
there the files become rows of Parquet files, which both kinds of session open.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from pyspark.ml.util import MLWriter
from pyspark.sql.utils import is_remote

_PART_BYTES = 4 << 20
# A server of default size runs out of memory by plans of 60 MB.
_WRITE_BYTES = 16 << 20
_SCHEMA = "name string, part int, content binary"


class OverwritingWriter(MLWriter):
    """Can overwrite through Spark Connect as well, where Spark's own writer asks the JVM."""

    def _handleOverwrite(self, path: str) -> None:  # noqa: N802 - the name is Spark's
        if not is_remote():
            super()._handleOverwrite(path)
            return
        from pyspark.ml.connect.readwrite import RemoteMLWriter

        RemoteMLWriter.handleOverwrite(path, True)


class SparkFolder(Protocol):
    """Copies all files between a folder of this host and one of a store."""

    def put(self, folder: Path, url: str) -> None:
        """Copies a local folder into the store."""

    def get(self, url: str, folder: Path) -> None:
        """Copies a folder of the store into an empty one of this host."""


def folder_of(side: Any) -> SparkFolder:
    """How the session of a reader or writer of Spark ML copies."""
    return ConnectFolder(side.sparkSession) if is_remote() else HadoopFolder(side.sc)


def metadata_place(side: Any) -> Any:
    """The session or context that Spark's functions need: Spark Connect has no SparkContext."""
    return side.sparkSession if is_remote() else side.sc


class HadoopFolder:
    """The ``SparkFolder`` of a classic session.

    Args:
        context: Its SparkContext.
    """

    def __init__(self, context: Any) -> None:
        self._path = context._jvm.org.apache.hadoop.fs.Path
        self._settings = context._jsc.hadoopConfiguration()

    def put(self, folder: Path, url: str) -> None:
        """See ``SparkFolder.put``."""
        target = self._path(url)
        filesystem = target.getFileSystem(self._settings)
        for file in sorted(folder.iterdir()):
            source, place = self._path(f"file://{file}"), self._path(f"{url}/{file.name}")
            filesystem.copyFromLocalFile(False, True, source, place)

    def get(self, url: str, folder: Path) -> None:
        """See ``SparkFolder.get``."""
        source = self._path(url)
        filesystem = source.getFileSystem(self._settings)
        for status in filesystem.listStatus(source):
            name = str(status.getPath().getName())
            place = self._path(f"file://{folder / name}")
            # With the raw local filesystem, which leaves no checksum file beside it.
            filesystem.copyToLocalFile(False, self._path(f"{url}/{name}"), place, True)
        _unpack(folder)


class ConnectFolder:
    """The ``SparkFolder`` of a Spark Connect session.

    Args:
        session: The session.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def put(self, folder: Path, url: str) -> None:
        """See ``SparkFolder.put``."""
        for rows in _written_together(folder):
            made = self._session.createDataFrame(rows, _SCHEMA)
            made.coalesce(1).write.mode("append").parquet(url)

    def get(self, url: str, folder: Path) -> None:
        """See ``SparkFolder.get``."""
        files = self._session.read.format("binaryFile").load(url)
        # No message carries a large file whole.
        last = f"cast(greatest(length - 1, 0) div {_PART_BYTES} as int)"
        parts = files.selectExpr("path", "content", f"explode(sequence(0, {last})) as part")
        content = f"substring(content, part * {_PART_BYTES} + 1, {_PART_BYTES}) as content"
        for row in parts.selectExpr("path", content).toLocalIterator():
            with open(folder / row.path.rpartition("/")[2], "ab") as file:
                file.write(row.content)
        _unpack(folder)


def _written_together(folder: Path) -> Iterator[list[tuple[str, int, bytes]]]:
    """The parts of all files, as many at once as a server takes."""
    rows: list[tuple[str, int, bytes]] = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            for part, content in enumerate(iter(lambda: file.read(_PART_BYTES), b"")):
                rows.append((path.name, part, content))
                if sum(len(row[2]) for row in rows) >= _WRITE_BYTES:
                    yield rows
                    rows = []
    if rows:
        yield rows


def _unpack(folder: Path) -> None:
    """Makes files again of the Parquet files that ``ConnectFolder.put`` has made of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = sorted(folder.glob("*.parquet"))
    if not packed:
        return
    table = pa.concat_tables(pq.read_table(path) for path in packed)
    for row in table.sort_by([("name", "ascending"), ("part", "ascending")]).to_pylist():
        # A name may hold a path, of which only the last part is used.
        with open(folder / Path(row["name"]).name, "ab") as file:
            file.write(row["content"])
