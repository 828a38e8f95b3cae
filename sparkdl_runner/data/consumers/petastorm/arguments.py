"""Arguments of petastorm's readers: none may load other users' pickles, or mix up one copy's."""

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


def require_one_order(arguments: dict[str, Any], shuffling_queue_capacity: int) -> None:
    """Lets ranks that share a shard get the same batches: by one seed, and one thread.

    petastorm's threads hand over row groups as they come, and its queue draws from NumPy's own
    generator.

    Raises:
        ValueError: More threads or a queue were asked for.
    """
    setting = None
    if (arguments.get("workers_count") or 1) > 1:
        setting = f"workers_count={arguments['workers_count']}"
    elif shuffling_queue_capacity:
        setting = f"shuffling_queue_capacity={shuffling_queue_capacity}"
    if setting is not None:
        raise ValueError(
            f"With shard_by, several ranks read the same shard, and with {setting} petastorm gives "
            "each of them other batches. Leave that out, or use engine='arrow'."
        )
    arguments["workers_count"] = 1
    arguments.setdefault("seed", 0)


def _require_own(folder: str) -> None:
    """Makes a cache's folder for this user alone; raises DatasetError if others may write there."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    state = os.stat(folder)
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise DatasetError(
            f"cache_location is {folder}, where other users may write, and petastorm's cache "
            "unpickles what it finds there: give it a folder of your own that has mode 0700."
        )
