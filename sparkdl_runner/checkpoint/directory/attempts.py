"""Attempts: each start of the training has a number, and fences off those before it.

A process that everybody takes for dead may wake up and commit. So each attempt begins by writing
down which checkpoints are there; what an earlier attempt commits after that is never looked at.
A process that only reads checkpoints begins none.
"""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Iterable
from typing import Any

from sparkdl_runner.checkpoint.directory.files import DamageError, read_bytes, write_bytes
from sparkdl_runner.checkpoint.directory.manifest import MANIFEST, Name
from sparkdl_runner.checkpoint.directory.sealed import BrokenSealError, seal, unseal
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError

DIRECTORY = "attempts"
_FENCE = re.compile(rf"{DIRECTORY}/attempt-(0|[1-9][0-9]{{0,17}})\.json")
# Others that start at the same moment take numbers too; so many at once is something else.
_TRIES = 100


def begin_attempt(storage: Storage, at_least: int = 0) -> int:
    """Takes the next number, and fences off all attempts before it.

    Args:
        storage: The directory of checkpoints.
        at_least: The lowest number to take.

    Raises:
        CheckpointError: No number could be taken.
        OSError: The storage refuses.
    """
    names = storage.names()
    taken = [_number(name) for name in names] + [name.attempt for name in written(names)]
    attempt = max(at_least - 1, *taken, -1) + 1
    committed = sorted(str(name) for name in visible(storage, names))
    for number in range(attempt, attempt + _TRIES):
        token = secrets.token_hex(16)
        fence = {"attempt": number, "token": token, "committed": committed}
        try:
            write_bytes(storage, DIRECTORY, f"attempt-{number}.json", seal(fence))
            # Where a file cannot be made exclusively, someone may have written it after us.
            if _read_fence(storage, number).get("token") == token:
                return number
        except (FileExistsError, DamageError, BrokenSealError):
            continue
    raise CheckpointError(
        f"No attempt could be begun in {storage.shown}: the numbers from {attempt} on were taken "
        f"{_TRIES} times. Give each run a directory of its own."
    )


def later_attempt(storage: Storage, attempt: int) -> int | None:
    """The newest attempt, if one began after this one."""
    newest = max((_number(name) for name in storage.names(DIRECTORY)), default=-1)
    return newest if newest > attempt else None


def written(names: Iterable[str]) -> set[Name]:
    """The places below ``step-N/attempt-A`` of which there is any file."""
    places = (Name.parse("/".join(name.split("/")[:2])) for name in names if name.count("/") > 1)
    return {place for place in places if place is not None}


def visible(storage: Storage, names: Iterable[str]) -> set[Name]:
    """The checkpoints that were committed, without what an attempt committed after its end.

    Args:
        storage: The directory of checkpoints.
        names: All files in it.
    """
    names = list(names)
    fences: dict[int, frozenset[str]] = {}
    for number in sorted(number for name in names if (number := _number(name)) >= 0):
        try:
            fences[number] = frozenset(_read_fence(storage, number)["committed"])
        except (DamageError, BrokenSealError, KeyError, TypeError) as problem:
            warnings.warn(
                f"{storage.shown}/{DIRECTORY}/attempt-{number}.json is damaged ({problem}), so "
                f"what attempts before {number} committed late is not told from the rest.",
                stacklevel=2,
            )
    committed = {
        name
        for text in names
        if text.endswith(f"/{MANIFEST}")
        and (name := Name.parse(text.removesuffix(f"/{MANIFEST}"))) is not None
    }
    return {
        name
        for name in committed
        if all(str(name) in fence for number, fence in fences.items() if number > name.attempt)
    }


def _number(name: str) -> int:
    found = _FENCE.fullmatch(name)
    return int(found[1]) if found else -1


def _read_fence(storage: Storage, number: int) -> dict[str, Any]:
    return unseal(read_bytes(storage, f"{DIRECTORY}/attempt-{number}.json"))
