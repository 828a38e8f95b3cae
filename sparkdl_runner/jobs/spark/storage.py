"""What Spark's own filesystems say of a place: whether it is there, and may be written."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.filesystem import local_path, normalize_url, redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def qualified(path: str, spark: SparkSession | None) -> str:
    """The URL of a path: one without a scheme is on Spark's default filesystem, else on this host.

    Raises:
        ConfigError: It is no usable URL.
    """
    if not urlsplit(path).scheme and not path.startswith(("/Volumes/", "/dbfs/")):
        if spark is None:
            path = f"file://{Path(path).resolve()}"
        else:
            filesystem, there = _open(spark, path)
            path = str(filesystem.makeQualified(there).toString())
    try:
        return normalize_url(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def exists(spark: SparkSession, path: str) -> bool:
    """Whether something is there, as far as this driver may see.

    Raises:
        ConfigError: The storage does not answer, or is of no kind that Spark knows.
    """
    try:
        filesystem, there = _open(spark, path)
        return bool(filesystem.exists(there))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot look at {redact(path)}: {_cause(error)}.") from None


def is_file(path: str, spark: SparkSession | None) -> bool:
    """Whether one file is there, and no folder.

    Raises:
        ConfigError: It is no usable URL, or Spark cannot look.
    """
    if spark is None:
        from sparkdl_runner.filesystem import open_filesystem

        url = qualified(path, None)
        try:
            arrow, place = open_filesystem(url)
            return bool(arrow.get_file_info(place).is_file)
        except (OSError, ImportError, ValueError):
            return False  # What goes on to read it says why it cannot.
    if not exists(spark, path):
        return False
    filesystem, there = _open(spark, path)
    return bool(filesystem.getFileStatus(there).isFile())


def held_by(spark: SparkSession, path: str) -> dict[str, bool]:
    """What a folder holds: each name, and whether it is a folder itself.

    Of a file it is its own name, and nothing where nothing is.

    Raises:
        ConfigError: The storage does not answer, or is of no kind that Spark knows.
    """
    if not exists(spark, path):
        return {}
    filesystem, there = _open(spark, path)
    try:
        found = filesystem.listStatus(there)
        return {str(one.getPath().getName()): bool(one.isDirectory()) for one in found}
    except Exception as error:
        raise ConfigError(f"cannot look into {redact(path)}: {_cause(error)}.") from None


def check_reachable(url: str) -> None:
    """Sees to it that this process has a way to a place, beside Spark's own.

    Raises:
        ConfigError: It has none.
    """
    from sparkdl_runner.filesystem import open_filesystem

    try:
        open_filesystem(url)
    except (OSError, ImportError, ValueError) as error:
        raise ConfigError(f"cannot reach {redact(url)}: {str(error).rstrip('.')}.") from None


def check_writable(spark: SparkSession, path: str) -> None:
    """Writes a small file into the folder, which is made if need be, and deletes both again.

    Raises:
        ConfigError: That fails.
    """
    try:
        filesystem, folder = _open(spark, path)
        missing = _missing(filesystem, folder)
        probe = _path(spark, f"{path.rstrip('/')}/.sparkdl-writable-{uuid.uuid4().hex}")
        filesystem.create(probe).close()
        filesystem.delete(probe, False)
        for made in missing:
            # Another job may have put something there meanwhile.
            if filesystem.exists(made) and len(filesystem.listStatus(made)) == 0:
                filesystem.delete(made, False)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"cannot write to {redact(path)}: {_cause(error)}. Make it writable, or choose another "
            "place."
        ) from None


def check_ranks_may_write(url: str) -> None:
    """The same by the way that ranks take, from this host.

    Folders that it made stay on other storage than this host's own and mounts: of those, pyarrow
    deletes none without what another job may have put into it meanwhile.

    Raises:
        ConfigError: That fails.
    """
    from sparkdl_runner.filesystem import open_filesystem

    made = _missing_here(url)
    try:
        filesystem, folder = open_filesystem(url)
        probe = f"{folder}/.sparkdl-writable-{uuid.uuid4().hex}"
        try:
            _touch(filesystem, folder, probe)
        except FileNotFoundError:  # Another job that was here first has removed its folder.
            _touch(filesystem, folder, probe)
        filesystem.delete_file(probe)
    except Exception as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"cannot write to {redact(url)}: {told.rstrip('.')}. Make it writable, or choose "
            "another place."
        ) from None
    finally:
        for one in made:
            with suppress(OSError):  # It was not made, or another job has put something there.
                one.rmdir()


def _touch(filesystem: Any, folder: str, probe: str) -> None:
    filesystem.create_dir(folder, recursive=True)
    filesystem.open_output_stream(probe).close()


def _missing_here(url: str) -> list[Path]:
    """The folder and those above it that this host lacks, the lowest first."""
    path = local_path(url)
    if path is None:
        return []
    folder = Path(path)
    return [one for one in (folder, *folder.parents) if not os.path.exists(one)]


def _missing(filesystem: Any, folder: Any) -> list[Any]:
    """The folder and those above it that are not there yet, the lowest first."""
    missing = []
    while folder is not None and not filesystem.exists(folder):
        missing.append(folder)
        folder = folder.getParent()
    return missing


def _path(spark: SparkSession, path: str) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    try:
        there = _path(spark, path)
        return there.getFileSystem(spark._jsc.hadoopConfiguration()), there
    except Exception as error:
        raise ConfigError(f"Spark cannot reach {redact(path)}: {_cause(error)}.") from None


def _cause(error: Exception) -> str:
    """Java's own words, without its stack."""
    java = getattr(error, "java_exception", None)
    told = str(java.toString() if java is not None else error).strip().splitlines()
    text = told[0] if told else type(error).__name__
    return text.rpartition("Exception: ")[2].rstrip(".")[:300]
