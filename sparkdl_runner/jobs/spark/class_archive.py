"""Spark's Java classes, kept in a file so that the next JVM starts in half of the time.

Most of what a JVM does that lives for seconds is to read some ten thousand classes and to check
them. Java 13 and later can write down at its end what it has loaded, and map that at its start
("class data sharing", JEP 350). Java itself passes over an archive that does not fit it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

from sparkdl_runner.launch.worker.driver_folders import changeable_by_others

# Java writes an archive's first bytes last: where they are there, it is whole.
MAGIC = 0xF00BABA8
UNUSED_SECONDS = 30 * 24 * 3600
# Java cannot archive a class path with folders, and does not start if it is asked to do so beside
# an agent or a patched module.
FOREIGN_OPTIONS = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"),
)


def java_options() -> str:
    """Options for a JVM of pip's pyspark on this machine: to use the archive, or else to write it.

    The archive is in the user's cache folder. Empty where Java is older than 13, Spark is not
    pip's, that folder cannot be written or others may change it, or the environment has options of
    its own for either.
    """
    installation = _installation()
    if installation is None:
        return ""
    name = hashlib.sha256(installation.encode()).hexdigest()[:16]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        archive = cache / "sparkdl-runner" / "java-classes" / f"{name}.jsa"
        archive.parent.mkdir(parents=True, exist_ok=True)
        is_there = _is_whole(archive)
        # Java runs what an archive holds.
        if changeable_by_others(str(archive if is_there else archive.parent)):
            return ""
        if is_there:
            os.utime(archive)
        else:
            _remove_unused(archive.parent)
    except (OSError, RuntimeError):  # This user's home folder is unknown.
        return ""
    option = "SharedArchiveFile" if is_there else "ArchiveClassesAtExit"
    # Java warns of each class that it cannot keep.
    return f"-Xlog:cds*=off {shlex.quote(f'-XX:{option}={archive}')}"


def _installation() -> str | None:
    """Identifies this Java and this Spark; None where there can be no archive."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    spark = importlib.util.find_spec("pyspark")
    if command is None or spark is None or spark.origin is None:
        return None
    if any(os.environ.get(name) for name in FOREIGN_OPTIONS):
        return None
    java, jars = Path(command).resolve(), Path(spark.origin).parent / "jars"
    try:
        release = (java.parents[1] / "release").read_text()
        changed = jars.stat().st_mtime_ns
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    if version is None or int(version[1]) < 13:
        return None
    return f"{java}\n{release}\n{jars}\n{changed}"


def _is_whole(archive: Path) -> bool:
    try:
        with archive.open("rb") as file:
            return int.from_bytes(file.read(4), sys.byteorder) == MAGIC
    except FileNotFoundError:
        return False


def _remove_unused(folder: Path) -> None:
    """Removes the archives of a Java or a Spark that has gone."""
    for archive in folder.glob("*.jsa"):
        if time.time() - archive.stat().st_mtime > UNUSED_SECONDS:
            archive.unlink(missing_ok=True)
