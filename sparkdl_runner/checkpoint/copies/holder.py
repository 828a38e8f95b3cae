"""Holds a rank's copies of a checkpoint's files in memory: a process that outlives the rank.

Each file is memory without a path (``memfd``), named by its SHA-256. The ranks of a restart open it
by way of ``/proc``, which the kernel allows to processes of the same user only. It is gone with
this process, which ends when the rank says so, when the process of Spark's executor or the driver
ends that it lives with, and when no restart has come in ``HOLD_SECONDS`` after the rank's end.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys

# A restart may come a minute after the end of the ranks, and then has to start and load its data.
HOLD_SECONDS = 180.0
MEMORY = "sparkdl_runner-copy-"
"""The memory of a file is called so, and then its SHA-256."""


def hold(line: socket.socket, lives_with: int) -> None:
    """Holds what the rank sends; returns once that is needed no more.

    Args:
        line: Brings ``step`` with the memory of a file of that step, ``drop_before`` with the first
            step that is still needed, ``drop`` with one that is not, or ``end``.
        lives_with: The process with which this one ends.
    """
    files: list[tuple[int, int]] = []
    other = os.pidfd_open(lives_with)
    events = select.poll()
    events.register(other, select.POLLIN)
    events.register(line, select.POLLIN)
    patience_ms = None
    while True:
        ready = dict(events.poll(patience_ms))
        if not ready or other in ready:
            return
        text, memories, *_ = socket.recv_fds(line, 4096, 1)
        message = json.loads(text or "{}")
        if "end" in message:
            return
        if not text:
            events.unregister(line)
            patience_ms = HOLD_SECONDS * 1000
        files += [(message["step"], memory) for memory in memories]
        first, one = message.get("drop_before", -1), message.get("drop")
        for step, memory in files:
            if step < first or step == one:
                os.close(memory)
        files = [file for file in files if file[0] >= first and file[0] != one]


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # A state may have many files.
    hold(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
