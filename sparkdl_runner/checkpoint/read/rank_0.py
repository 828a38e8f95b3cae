"""Reads small files that all ranks need: rank 0 alone asks the storage, and tells the others."""

from __future__ import annotations

from collections.abc import Callable

from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError
from sparkdl_runner.checkpoint.peers import Peers


def read_on_rank_0(peers: Peers, read: Callable[[], bytes]) -> bytes:
    """Reads on rank 0 and returns the result on all ranks; all of them must call it.

    Raises:
        DamageError: Rank 0 could not, for the reason that it found.
    """
    told = b""
    if peers.rank == 0:
        try:
            told = b"+" + read()
        except DamageError as problem:
            sign = b"?" if isinstance(problem, UnreadableError) else b"-"
            told = sign + str(problem).encode()
    told = peers.broadcast(told)
    if told[:1] == b"+":
        return told[1:]
    raise (UnreadableError if told[:1] == b"?" else DamageError)(told[1:].decode())
