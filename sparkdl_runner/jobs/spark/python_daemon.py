"""Spark's daemon for Python tasks, on this machine, without the archive of pyspark's sources.

Spark puts that archive, and a jar, first on the search path of its Python processes. Python keeps
nothing that it compiles from an archive, so each start of the daemon compiles pyspark again, which
is two thirds of its time; and each task lists them anew. pip has installed the same modules in a
folder, where they are compiled once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

# With these set, Spark may not be pip's, or may have a daemon already.
_FOREIGN = ("SPARK_HOME", "SPARK_CONF_DIR")


def settings() -> dict[str, str]:
    """The Spark settings that start this daemon; none where Spark could not find it.

    Python processes are to be this interpreter, which has this package installed, since only then
    they have it before Spark has sent them any file.
    """
    is_this_python = os.environ.get("PYSPARK_PYTHON") == sys.executable
    if not is_this_python or any(os.environ.get(name) for name in _FOREIGN):
        return {}
    try:
        metadata.distribution("sparkdl-runner")
    except metadata.PackageNotFoundError:
        return {}
    return {"spark.python.daemon.module": __name__}


def without_archives(paths: Sequence[str]) -> list[str]:
    """The search path without Spark's archives of what is also installed on it as folders."""
    return [path for path in paths if not _is_installed(Path(path), paths)]


def _is_installed(archive: Path, paths: Sequence[str]) -> bool:
    """Whether an archive is part of a pyspark that is installed, and its package is, too.

    There are ``pyspark/python/lib/pyspark.zip``, ``…/py4j-0.10.9.7-src.zip``, and Spark's own jar,
    ``pyspark/jars/spark-core_2.12-3.5.9.jar``, which holds nothing for Python.
    """
    if archive.match("pyspark/jars/spark-core_*.jar"):
        packages, package = archive.parents[2], "pyspark"
    elif archive.match("pyspark/python/lib/*.zip"):
        packages, package = archive.parents[3], archive.stem.partition("-")[0]
    else:
        return False
    return str(packages) in paths and (packages / package / "__init__.py").is_file()


def main() -> None:
    """Runs Spark's own daemon."""
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
