"""Java as tests start it. Their JVMs live for seconds, most of which went into getting started.

With the first compiler alone, one thread for garbage and the classes of a Spark that has started
and written a table kept in an archive, a JVM takes a third of the processor's time. What it
computes is the same.

    python tests/quick_java.py    # makes it for this Python's Spark, once
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HOME = Path(sys.prefix) / "quick-java"
ARCHIVE = HOME / f"spark-{version('pyspark')}.jsa"
# Without the log, an archive that does not fit a class path is passed over without a word.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
# What most tests make Spark do.
SPARK = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.range(100).selectExpr("id", "array(id / 2) AS half").write.parquet("table")
session.read.parquet("table").filter("id > 7").groupBy("half").count().collect()
session.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).collect()
session.stop()
"""


def use() -> None:
    """Makes it the Java of this process and of all that it starts, if it is there."""
    if (HOME / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(HOME)


def make() -> None:
    """Makes it of the Java that would be used without it; at any moment it is whole."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return
    HOME.mkdir(exist_ok=True)
    if not ARCHIVE.exists():
        write_archive(java)
    # A Java before 13, and one that was cut down, writes none.
    write_java(HOME, java, f"-XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else "")


def write_archive(java: str) -> None:
    """Writes the archive of what a Spark loads that is started by this Java."""
    with tempfile.TemporaryDirectory(prefix="quick-java-") as folder:
        archive = Path(folder) / ARCHIVE.name
        write_java(Path(folder), java, f"-XX:ArchiveClassesAtExit={archive}")
        subprocess.run(
            [sys.executable, "-c", SPARK],
            cwd=folder,
            env={**os.environ, "JAVA_HOME": folder, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            check=True,
        )
        if archive.exists():
            shutil.move(archive, ARCHIVE)


def write_java(home: Path, java: str, option: str) -> None:
    """Writes a Java home whose ``java`` is another's with options."""
    command = home / "bin" / "java"
    command.parent.mkdir(exist_ok=True)
    new = command.with_name("java-new")
    # Where it really is: it finds its libraries beside itself.
    options = " ".join([*OPTIONS, option])
    new.write_text(f'#!/bin/sh\nexec "{os.path.realpath(java)}" {options} "$@"\n')
    new.chmod(0o755)
    new.rename(command)


if __name__ == "__main__":
    make()
