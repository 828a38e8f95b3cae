"""The beginning of an attempt: all ranks take the same number, and see the same directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl_runner import world
from sparkdl_runner.checkpoint.directory import attempts
from sparkdl_runner.checkpoint.directory.retrying import may_pass, patiently
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError
from sparkdl_runner.checkpoint.peers import Peers, gather_text, host


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the training, as all of its ranks know it."""

    number: int
    peers: Peers
    hosts: Sequence[str]
    """Where the ranks are, in their order."""

    @property
    def host(self) -> str:
        """Where this rank is."""
        return self.hosts[self.peers.rank]


def begin_together(storage: Storage, peers: Peers) -> Attempt:
    """Takes the number of this attempt, the same on all ranks, and meets the other ranks.

    To be called by all ranks.

    Raises:
        CheckpointStorageError: The storage failed, and may not fail again.
        CheckpointError: Rank 0 cannot write there, or what it wrote is not seen by all ranks.
    """
    answer: dict[str, Any] = {}
    cause: Exception | None = None
    if peers.rank == 0:
        at_least = world.current_world().attempt if world.in_worker() else 0
        try:
            number = patiently(storage, lambda: attempts.begin_attempt(storage, at_least))
            answer = {"attempt": number}
        except Exception as error:  # Storages raise errors of many kinds.
            answer = {
                "error": f"{type(error).__name__}: {error}",
                "may_pass": may_pass(storage, error),
            }
            cause = error
    answer = json.loads(peers.broadcast(json.dumps(answer).encode()))
    if "error" in answer:
        kind = CheckpointStorageError if answer["may_pass"] else CheckpointError
        raise kind(
            f"Rank {peers.rank} on host {host()}: no checkpoint can be kept in {storage.shown}, "
            f"since rank 0 cannot write there ({answer['error']})."
        ) from cause
    number = int(answer["attempt"])
    fence = f"{attempts.DIRECTORY}/attempt-{number}.json"
    mark = "+" if peers.rank == 0 or _sees(storage, fence) else "-"
    words = gather_text(peers, mark + host())
    blind = [f"rank {rank} (host {word[1:]})" for rank, word in enumerate(words) if word[0] != "+"]
    if blind:
        raise CheckpointError(
            f"What rank 0 on host {words[0][1:]} wrote to {storage.shown} is not seen by "
            f"{', '.join(blind[:10])}: the directory must be on storage that all hosts share."
        )
    return Attempt(number=number, peers=peers, hosts=[word[1:] for word in words])


def _sees(storage: Storage, name: str) -> bool:
    try:
        return storage.exists(name)
    except Exception:  # Its own error would leave the other ranks waiting for this one.
        return False
