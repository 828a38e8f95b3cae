"""Copies checkpoint files of other hosts' ranks into this host's memory, in case a host is lost.

The files are read from the storage once they are committed. Ranks send one another nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator

from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.directory.files import FileEntry, read_entry
from sparkdl_runner.checkpoint.directory.manifest import Manifest, Name, read_manifest
from sparkdl_runner.checkpoint.directory.memory import FREE_SHARE, leaves_room
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError

# A rank's shards; its generators; its list of files.
_OF_A_RANK = re.compile(r"(sharded/)?r(?:ng|ank)-([0-9]+)")
# With more, each host would ask the storage for thousands of small files at each save.
_MOST_RANKS = 64


def copy_of_others(
    storage: Storage, copies: MemoryCopies, name: Name, wait: Callable[[], None]
) -> None:
    """Reads what this host lacks once ``wait`` returns, until the next save. Raises nothing."""
    try:
        wait()
        copies.committed(name.step)
        manifest, here = read_manifest(storage, name), copies.served(name.step)
        shards = shards_before(manifest, here)
        others = list(needed_of_others(manifest, here))
        # Its own next shards come first: most restarts need those.
        held = [*others, *shards, *_shards_of(manifest, here)]
        if shards and not leaves_room(sum(entry.size_bytes for entry in held)):
            copies.warn(f"lacks shards of other hosts: {FREE_SHARE:.0%} of memory must stay free")
            shards = []
        for entry in [*others, *shards]:
            content = read_entry(storage, str(name), entry)
            if not copies.served(name.step):
                return  # A save has begun, or this rank has ended.
            copies.keep(entry, content, name.step)  # A save may begin at this moment.
    except Exception as error:  # Storages raise errors of many kinds.
        is_committed = not isinstance(error, CheckpointError)  # Else the save says why.
        if is_committed and copies.served(name.step):
            copies.warn(f"lacks what other hosts saved of step {name.step} ({error})")


def needed_of_others(manifest: Manifest, here: range) -> Iterator[FileEntry]:
    """The files but for shards that a host may need after a restart, under any number, and lacks.

    Args:
        manifest: Lists the files.
        here: The host's own ranks.
    """
    for entry in manifest.files:
        found = _OF_A_RANK.match(entry.path)
        rank = int(found[2]) if found else 0  # Rank 0 saves what is all ranks'.
        if rank not in here and not (found and (found[1] or manifest.world_size > _MOST_RANKS)):
            yield entry


def shards_before(manifest: Manifest, here: range) -> list[FileEntry]:
    """The shards of as many ranks before a host's own: it has no room for those of all.

    So each shard is in two hosts' memory, if all have as many ranks.
    """
    before = {(here.start - 1 - turn) % manifest.world_size for turn in range(len(here))}
    return _shards_of(manifest, before - {*here})


def _shards_of(manifest: Manifest, ranks: Container[int]) -> list[FileEntry]:
    found = [(entry, _OF_A_RANK.match(entry.path)) for entry in manifest.files]
    return [entry for entry, rank in found if rank and rank[1] and int(rank[2]) in ranks]
