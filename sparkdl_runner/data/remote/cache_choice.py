"""Opens the cache on the local disk that a loader's arguments ask for."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.remote.disk_cache import DiskCache
from sparkdl_runner.rank import world

_log = logging.getLogger(__name__)

DECODED = "decoded"
CACHE_TYPES = ("null", "local-disk", DECODED)
"""petastorm's names, and one of our own."""

_UNASKED_BYTES = 1 << 30
"""How large a cache in the temporary folder may be if the user has not asked for one."""


def open_cache(
    cache_type: str | None, location: str | None, limit_bytes: int | None, files: VerifiedFiles
) -> DiskCache | None:
    """The cache that the arguments of a loader ask for, if any.

    For local files there is one for decoded images only. Without a type, remote files have one
    where Spark, or YARN, gives the host a folder for local files; and a small one in the temporary
    folder where ranks share the host, as each would fetch the row groups that they share.

    Raises:
        ValueError: There is no such type.
    """
    if cache_type not in (None, *CACHE_TYPES):
        raise ValueError(f"cache_type is {cache_type!r}; expected one of {', '.join(CACHE_TYPES)}.")
    if files.dataset.is_local and cache_type != DECODED:
        return None
    local = local_folder()
    is_unasked = cache_type is None and local is None
    if cache_type == "null" or (is_unasked and not _shares_its_host()):
        return None
    if is_unasked and limit_bytes is None:
        limit_bytes = _UNASKED_BYTES
    folder = Path(location or local or tempfile.gettempdir())
    try:
        return DiskCache(folder, limit_bytes, files.identity)
    except OSError as error:
        _log.warning(
            "There is no cache in %s (%s): everything is fetched each time. Give another "
            "cache_location.",
            folder,
            error,
        )
        return None


def local_folder() -> Path | None:
    """The folder of Spark or YARN for large files on this host, if its variable is set."""
    listed = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or ""
    return Path(listed.split(",")[0]) if listed else None


def _shares_its_host() -> bool:
    return world.in_worker() and world.current_world().local_size > 1
