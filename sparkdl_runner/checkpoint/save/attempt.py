"""The beginning of an attempt: all ranks take the same number, and earlier attempts are ended.

A training that saves begins one. Who only reads checkpoints begins none.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_runner.checkpoint.directory.listing import (
    FENCES,
    attempts_in,
    claim_file,
    committed,
    fence_file,
    read_fence,
    written,
)
from sparkdl_runner.checkpoint.directory.sealed import seal
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError, DamageError
from sparkdl_runner.checkpoint.peers import Peers, ask_rank_0, host
from sparkdl_runner.rank import world

# Others that start at the same moment take numbers too; so many at once is something else.
_TRIES = 100


@dataclass(frozen=True, kw_only=True)
class WriterFence:
    """One start of the training, as all of its ranks know it."""

    number: int
    token: str
    """A random number in the fence of this attempt; another driver's fence has another one."""
    peers: Peers
    hosts: Sequence[str]
    """The hosts of the ranks, in their order."""


def begin_together(storage: Storage, peers: Peers) -> WriterFence:
    """Takes the number of this attempt, the same on all ranks, and meets the other ranks.

    To be called by all ranks.

    Raises:
        CheckpointStorageError: The storage failed, and may not fail again.
        CheckpointError: Rank 0 cannot write there, or what it wrote is not seen by all ranks.
    """
    if peers.rank == 0:
        warn_of_other_owner(storage)
    number, token = ask_rank_0(
        storage,
        peers,
        lambda: begin_attempt(storage, own_number()),
        f"no checkpoint can be kept in {storage.shown}, since rank 0 cannot write there",
    )
    sees = peers.rank == 0 or _sees(storage, f"{FENCES}/{fence_file(number)}")
    words = peers.gather_text(("+" if sees else "-") + host())
    hosts = [word[1:] for word in words]
    blind = [f"rank {rank} (host {word[1:]})" for rank, word in enumerate(words) if word[0] != "+"]
    if blind:
        raise CheckpointError(
            f"What rank 0 on host {hosts[0]} wrote to {storage.shown} is not seen by "
            f"{', '.join(blind[:10])}: the directory must be on storage that all hosts share."
        )
    return WriterFence(number=number, token=token, peers=peers, hosts=hosts)


def own_number() -> int:
    """The lowest number for this attempt: the one that the launcher counts, if there is one."""
    return world.current_world().attempt if world.in_worker() else 0


def warn_of_other_owner(storage: Storage) -> None:
    """Warns of a directory that another user of this host owns."""
    if owner := storage.other_owner():
        warnings.warn(
            f"{storage.shown} belongs to {owner}, who can exchange the checkpoints in it. Use a "
            "directory of your own, unless you trust that user.",
            stacklevel=5,
        )


def warn_if_newer(storage: Storage, attempt: WriterFence, step: int) -> None:
    """Warns on rank 0 if ``step`` is saved, and nothing was restored, beside a newer checkpoint."""
    newest = max(committed(storage), default=None) if attempt.peers.rank == 0 else None
    if newest is not None and newest.step >= step:
        warnings.warn(
            f"{storage.shown} holds a checkpoint of step {newest.step}, and step {step} is saved "
            "without a restore() before: a later restore() would find the former, and it is kept "
            "longer. Call restore() first, or take a new directory.",
            stacklevel=3,
        )


def begin_attempt(storage: Storage, at_least: int = 0) -> tuple[int, str]:
    """Takes the next number, and ends all attempts before it by a fence.

    Args:
        storage: The directory of checkpoints.
        at_least: The lowest number to take.

    Returns:
        The number, and the token of its fence. In an object store another driver that begins at
        the same moment may overwrite the fence even now. A commit looks for that.

    Raises:
        CheckpointError: No number could be taken.
        OSError: The storage refuses.
    """
    names = storage.names()
    taken = [*attempts_in(names), *(name.attempt for name in written(names))]
    lowest = max([at_least, *(attempt + 1 for attempt in taken)])
    before = sorted(map(str, committed(storage, names)))
    for attempt in range(lowest, lowest + _TRIES):
        token = secrets.token_hex(16)
        fence = {"attempt": attempt, "token": token, "committed": before}
        try:
            storage.write(f"{FENCES}/{claim_file(attempt, token)}", b"")
            storage.write(f"{FENCES}/{fence_file(attempt)}", seal(fence))
            # An object store lets another driver overwrite it: the last one has the number.
            if read_fence(storage, attempt) == fence:
                return attempt, token
        except (FileExistsError, DamageError):
            continue
    raise CheckpointError(
        f"No attempt could be begun in {storage.shown}: the numbers from {lowest} on were taken "
        f"{_TRIES} times. Give each run a directory of its own."
    )


def _sees(storage: Storage, name: str) -> bool:
    try:
        return storage.exists(name)
    except Exception:  # Its own error would leave the other ranks waiting for this one.
        return False
