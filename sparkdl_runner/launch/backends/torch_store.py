"""torch's store: served by rank 0's worker until no rank needs it, with keys for each group.

``torchrun`` does the same in its agent. Ours imports no torch, so its worker serves and stays.
"""

from __future__ import annotations

import importlib
import itertools
import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import Serving

JOIN_SECONDS = "SPARKDL_RUNNER_JOIN_SECONDS"
"""In a rank's environment: how long it may wait for its peers, where torch's default is less."""

# Errors of C++ about an impossible length in a value of the store.
_MALFORMED = ("basic_string::", "vector::", "cannot create std::", "std::bad_alloc")

# Kept for as long as the process lives, and with it the server.
_store: object | None = None


def serve(listener: socket.socket) -> None:
    """Serves the store, in rank 0, on the socket that its agent bound behind its relay."""
    import torch
    from torch.distributed import TCPStore

    global _store
    _store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        # Before 2.8 the store of libuv, which 2.4 made the default, refuses a socket that listens.
        use_libuv=torch.__version__ >= (2, 8),
    )


def stay(line: WorkerPipe) -> None:
    """Waits, where this process serves the store, until its agent says that all others have ended.

    Called when nothing is left to do in this process, as functions that are registered with
    ``atexit`` may need the other ranks.
    """
    if _store is None:
        return
    with suppress(EOFError, OSError):
        line.send(Serving())
        line.receive()


def give_each_group_its_own_keys() -> None:
    """Makes each ``init_process_group()`` meet under keys that no earlier one has used.

    After ``destroy_process_group()`` the store still holds addresses of sockets that are closed; a
    rank that reads one before its peer has replaced it cannot connect. Every rank makes the same
    calls, and so counts alike; ``torch.distributed.rpc`` does it this way too.
    """
    from torch.distributed import PrefixStore

    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    meet, groups = handlers["env"], itertools.count()

    def meet_again(url: str, **arguments: Any) -> Iterator[tuple[object, int, int]]:
        for store, rank, size in meet(url, **arguments):
            yield PrefixStore(f"group_{next(groups)}", store), rank, size

    handlers["env"] = meet_again


def advice(error: BaseException) -> str:
    """Advice if torch found values in its store that no rank writes; else ""."""
    words = [argument for argument in error.args if isinstance(argument, str)]
    if type(error) not in (ValueError, MemoryError) or not words:
        return ""
    frames = traceback.walk_tb(error.__traceback__)
    # Elsewhere, as in a collective, a MemoryError means what it says.
    is_joining = any(frame.f_code.co_name == "_new_process_group_helper" for frame, _ in frames)
    if not is_joining or not words[0].startswith(_MALFORMED):
        return ""
    return (
        "torch read from its store what no rank writes there, so the store was probably tampered "
        "with, by a process of any user on a host of the run. Do not trust this run, and look who "
        "else is on its hosts."
    )


def wait_as_long_as_promised() -> None:
    """Raises torch's default deadlines to the run's, which the driver watches over by itself.

    torch's are 30 minutes, and 10 with NCCL. A ``timeout=`` that user code gives is kept.
    """
    from torch.distributed import distributed_c10d

    promised = timedelta(seconds=int(os.environ.get(JOIN_SECONDS, "0")))
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        default = getattr(distributed_c10d, name, None)
        if default is not None and default < promised:
            setattr(distributed_c10d, name, promised)
