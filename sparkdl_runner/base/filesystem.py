"""Opens the filesystem of a URL of data sets and checkpoints, in the process that reads.

Only URLs travel between processes. A filesystem object holds connections, threads and credentials,
none of which survive a fork, and none of which belong into a pickle or a manifest.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sparkdl_runner.base.redaction import is_secret_name

if TYPE_CHECKING:
    from pyarrow import fs

_S3 = ("s3", "s3a", "s3n")
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
_GOOGLE = ("gs", "gcs")
_HADOOP = ("hdfs", "viewfs")

StorageOptions = Mapping[str, Any]


def normalize_url(url: str) -> str:
    """Returns the one way in which this package writes down a directory's URL.

    Args:
        url: A URL with a scheme, or a path under ``/Volumes`` or ``/dbfs``.

    Returns:
        The same place without a trailing slash: ``file:///a/b``, ``dbfs:/Volumes/…``,
        ``s3a://bucket/key``, ``abfss://container@account.dfs.core.windows.net/a``.

    Raises:
        ValueError: There is no scheme or no absolute path, or the URL holds credentials.
    """
    if not isinstance(url, str):
        raise TypeError(f"A directory is named by a URL, a str; got {type(url).__name__}.")
    if url.startswith("/Volumes/"):
        url = f"dbfs:{url}"
    elif url.startswith("/dbfs/"):
        url = f"file:{url}"
    parts = urlsplit(url)
    if not parts.scheme:
        raise ValueError(
            f"The directory {redact(url)!r} has no scheme: write file:///absolute/path for a local "
            "directory, or s3a://…, abfss://…, gs://…, hdfs://…, dbfs:/…."
        )
    _refuse_credentials(parts)
    if parts.scheme in ("file", "dbfs"):
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError(
                f"{redact(url)!r} names no absolute path: after {parts.scheme}: comes a path that "
                "starts with a slash."
            )
        # A '#' or '?' is a character of the path here, so cut the text instead of the parts.
        path = url[len(parts.scheme) + 1 :]
        path = "/" + path.removeprefix("//localhost").strip("/")
        return f"file://{path}" if parts.scheme == "file" else f"dbfs:{path}"
    return url.rstrip("/")


def is_s3(url: str) -> bool:
    """Whether a normalized URL names a place that ``pyarrow.fs.S3FileSystem`` opens."""
    return urlsplit(url).scheme in _S3


def join_url(directory_url: str, name: str) -> str:
    """Returns the URL of ``name`` in the directory."""
    return f"{directory_url.rstrip('/')}/{name}"


def redact(url: str) -> str:
    """Returns the URL as it may be shown in a message or a log: without credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an unreadable URL)"
    if parts.scheme in ("", "file", "dbfs"):
        return url
    netloc = parts.netloc
    if "@" in netloc and not _is_container_and_account(parts):
        netloc = "…@" + netloc.rpartition("@")[2]
    query = "…" if parts.query else ""
    fragment = "…" if parts.fragment else ""
    return parts._replace(netloc=netloc, query=query, fragment=fragment).geturl()


def local_path(url: str) -> str | None:
    """Returns the path under which this machine sees the directory, or ``None`` if it is remote.

    ``dbfs:`` is seen through its mount: ``dbfs:/Volumes/c/s/v`` is ``/Volumes/c/s/v``, everything
    else is below ``/dbfs``.
    """
    url = normalize_url(url)
    if url.startswith("file://"):
        return url.removeprefix("file://")
    if url.startswith("dbfs:"):
        path = url.removeprefix("dbfs:")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return None


@functools.cache
def is_far(path: str) -> bool:
    """Whether a path of this machine leads to remote storage, through a mount in user space.

    There, each small read is a request, and the kernel knows neither owners nor times.
    """
    if path.startswith(("/dbfs/", "/Volumes/")):
        return True
    found = max(
        (mount for mount in _mounts() if f"{path}/".startswith(f"{mount[0].rstrip('/')}/")),
        key=lambda mount: len(mount[0]),
        default=("/", ""),
    )
    return found[1].startswith("fuse.") and found[1] != "fuse.fuse-overlayfs"


def _mounts() -> list[tuple[str, str]]:
    """The mount points, with their types."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return []
    return [(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2]


def open_filesystem(
    url: str, storage_options: StorageOptions | None = None
) -> tuple[fs.FileSystem, str]:
    """Builds the filesystem that holds a directory, in this process, for this process.

    Credentials come from the environment, as the storage's own tools find them, or from
    ``storage_options``; they are kept in the returned object and nowhere else.

    Args:
        url: The directory.
        storage_options: Arguments of ``pyarrow.fs.S3FileSystem``, ``GcsFileSystem``,
            ``AzureFileSystem`` or ``HadoopFileSystem``, or of the fsspec filesystem for what
            pyarrow does not know.

    Returns:
        The filesystem, and the directory's path in it.

    Raises:
        ValueError: The URL is not one, or holds credentials.
        ImportError: Reading the place needs a package that is not installed here.
        OSError: The storage refuses, or cannot be reached.
    """
    from pyarrow import fs

    url = normalize_url(url)
    options = dict(storage_options or {})
    path = local_path(url)
    if path is not None:
        return fs.LocalFileSystem(), path
    parts = urlsplit(url)
    if parts.scheme in _S3:
        return _open_s3(parts, options)
    if parts.scheme in _GOOGLE:
        return fs.GcsFileSystem(**options), f"{parts.netloc}{parts.path}"
    if parts.scheme in _AZURE:
        return _open_azure(parts, options)
    if parts.scheme in _HADOOP:
        return _open_hadoop(parts, options)
    return _open_fsspec(url, parts.scheme, options)


def _refuse_credentials(parts: SplitResult) -> None:
    in_host = "@" in parts.netloc and not _is_container_and_account(parts)
    user_only = parts.scheme in _HADOOP and ":" not in parts.netloc.partition("@")[0]
    fields = parse_qsl(f"{parts.query}&{parts.fragment}")
    if (in_host and not user_only) or any(is_secret_name(name) for name, _ in fields):
        raise ValueError(
            f"The {parts.scheme}: URL holds credentials, which would end up in logs: give them to "
            "the processes by the environment, or as storage_options."
        )


def _is_container_and_account(parts: SplitResult) -> bool:
    return parts.scheme in _AZURE and ":" not in parts.netloc


def _open_s3(parts: SplitResult, options: dict[str, Any]) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_override" not in options:
        # pyarrow 14 does not look at these variables; boto3 and the AWS tools do.
        options["endpoint_override"] = endpoint
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region and "region" not in options:
        options["region"] = region
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = fs.resolve_s3_region(parts.netloc)
    return fs.S3FileSystem(**options), f"{parts.netloc}{parts.path}"


def _open_azure(parts: SplitResult, options: dict[str, Any]) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    container, _, host = parts.netloc.rpartition("@")
    account = host.partition(".")[0]
    path = f"{container}{parts.path}"
    if "account_name" not in options:
        options["account_name"] = account
    if hasattr(fs, "AzureFileSystem"):
        key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
        if key and not {"account_key", "sas_token"} & set(options):
            options["account_key"] = key
        return fs.AzureFileSystem(**options), path
    _need_package("adlfs", parts.scheme)
    return _wrap_fsspec("abfs", options), path


def _open_hadoop(parts: SplitResult, options: dict[str, Any]) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    user, _, address = parts.netloc.rpartition("@")
    host, _, port = address.partition(":")
    # An empty host stands for the default filesystem of the Hadoop configuration.
    name = f"{parts.scheme}://{host}" if host and parts.scheme != "hdfs" else host or "default"
    try:
        return fs.HadoopFileSystem(name, int(port or 0), user=user or None, **options), parts.path
    except OSError as error:
        # Hadoop's native library, or what its Java needs, is not there: in no container of YARN.
        try:
            from sparkdl_runner.base.hdfs import open_hdfs
        except ImportError:
            raise ImportError(
                f"{parts.scheme}: needs the package hdfs-native in every process that reads (pip "
                "install 'sparkdl-runner[hdfs]'), or Hadoop's native library: HADOOP_HOME, and "
                "CLASSPATH as 'hadoop classpath --glob' prints it."
            ) from error
        settings = dict(options.pop("extra_conf", None) or {})
        if options:
            raise ValueError(
                f"{parts.scheme}: is read by hdfs-native here, which takes none of "
                f"{sorted(options)}: put them into Hadoop's configuration, or into extra_conf."
            ) from None
        return open_hdfs(f"{parts.scheme}://{address}", user, settings), parts.path


def _open_fsspec(url: str, scheme: str, options: dict[str, Any]) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    fsspec = _need_package("fsspec", scheme)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except ValueError as error:
        raise ValueError(
            f"{scheme}: is no kind of storage that pyarrow or fsspec knows ({error}); known are "
            "file:, s3a:, abfss:, gs:, hdfs:, dbfs: and fsspec's."
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


def _wrap_fsspec(protocol: str, options: dict[str, Any]) -> fs.FileSystem:
    from pyarrow import fs

    fsspec = _need_package("fsspec", protocol)
    return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(protocol, **options)))


def _need_package(name: str, scheme: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Reading {scheme}: needs the package {name} in every process that reads: "
            f"pip install {name}."
        ) from error
