"""Makes arguments of petastorm's readers safe: none may load other users' pickles."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.data.errors import DatasetError

_log = logging.getLogger(__name__)


def without_foreign_pickles(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with threads in place of processes, once the cache is known to be our own.

    Raises:
        DatasetError: Other users may write what the cache would unpickle.
    """
    safe = dict(arguments)
    if safe.get("reader_pool_type") == "process":
        safe["reader_pool_type"] = "thread"
        _log.warning(
            "petastorm reads by threads: with reader_pool_type='process' it unpickles whatever "
            "any user of this host sends to its ports."
        )
    if safe.get("cache_location") is not None:
        _require_own(os.fspath(safe["cache_location"]))
    return safe


def _require_own(folder: str) -> None:
    """Makes a cache's folder for this user alone; raises DatasetError if others may write there."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise DatasetError(
            f"cache_location is {folder}, where other users may write, and petastorm's cache "
            "unpickles what it finds there: give it a folder of your own that has mode 0700."
        )
