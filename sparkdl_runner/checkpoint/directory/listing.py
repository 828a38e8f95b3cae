"""Which checkpoints a directory holds, as a reader sees it.

Each start of the training is an attempt with a number. It begins by writing a fence: a list of the
checkpoints that are there. What an earlier attempt commits after that does not count, since a
process that everybody took for dead may wake up and commit. Reading writes no fence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

from sparkdl_runner.checkpoint.directory.files import read_file
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Name
from sparkdl_runner.checkpoint.directory.sealed import unseal
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError

FENCES = "attempts"
"""The directory of the fences."""
_FENCE = re.compile(rf"{FENCES}/attempt-(0|[1-9][0-9]{{0,17}})\.json")


def fence_file(attempt: int) -> str:
    """The file of an attempt's fence, in ``FENCES``."""
    return f"attempt-{attempt}.json"


def claim_file(attempt: int, token: str) -> str:
    """An empty file in ``FENCES`` that each driver writes before its fence, with its own token.

    Where a fence can be overwritten, the claims still show that two drivers took one number.
    """
    return f"attempt-{attempt}.{token}"


def read_fence(storage: Storage, attempt: int) -> dict[str, Any]:
    """Reads the file that an attempt wrote when it began.

    Raises:
        DamageError: It is not what was written.
    """
    path = fence_file(attempt)
    fence = unseal(read_file(storage, FENCES, path)[0], path)
    if not isinstance(fence.get("committed"), list):
        raise DamageError(f"{path} is damaged: it has no list of checkpoints")
    return fence


def attempts_in(names: Iterable[str]) -> list[int]:
    """The attempts that have a fence among these files, in their order."""
    return sorted(int(found[1]) for name in names if (found := _FENCE.fullmatch(name)))


def is_claimed_by_others(names: Iterable[str], attempt: int, token: str) -> bool:
    """Whether these files have another driver's claim to an attempt."""
    own = {f"{FENCES}/{name}" for name in (fence_file(attempt), claim_file(attempt, token))}
    return any(name.startswith(f"{FENCES}/attempt-{attempt}.") for name in set(names) - own)


def written(names: Iterable[str]) -> set[Name]:
    """The checkpoints of which there is any file, whether they are committed or not."""
    places = (Name.parse("/".join(name.split("/")[:2])) for name in names if name.count("/") > 1)
    return {place for place in places if place is not None}


def committed(storage: Storage, names: Iterable[str] | None = None) -> set[Name]:
    """The checkpoints that count: committed, and by an attempt that had not ended by then.

    Args:
        storage: The directory of checkpoints.
        names: All files in it, if they are known.
    """
    names = storage.names() if names is None else list(names)
    suffix = f"/{MANIFEST}"
    places = (Name.parse(path.removesuffix(suffix)) for path in names if path.endswith(suffix))
    checkpoints = {place for place in places if place is not None}
    # The newest fence lists what counted by all earlier ones. Where all is of its own attempt, it
    # has nothing to say either.
    for attempt in reversed(attempts_in(names)):
        if all(name.attempt >= attempt for name in checkpoints):
            break
        try:
            before = set(map(str, read_fence(storage, attempt)["committed"]))
        except DamageError as problem:
            warnings.warn(
                f"{storage.shown}/{FENCES}/{problem}, so what attempts before {attempt} committed "
                "late is not told from the rest.",
                stacklevel=2,
            )
            continue
        return {name for name in checkpoints if name.attempt >= attempt or str(name) in before}
    return checkpoints
