"""Which process this is, so that another one can tell for certain whether it has ended."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from sparkdl_runner.base import processes
from sparkdl_runner.base.this_host import boot_id, namespace


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process, told apart from any other that has the same id."""

    hostname: str
    boot_id: str
    pid_namespace: str
    pid: int
    started_ticks: int
    """See ``ProcessStat``."""

    def is_on_this_machine(self) -> bool:
        """Whether this process can see that process's id."""
        here = (socket.gethostname(), boot_id(), namespace("pid"))
        return here == (self.hostname, self.boot_id, self.pid_namespace)

    def is_gone(self) -> bool:
        """Whether it has certainly ended; only for a process on this machine."""
        # 0 is what a system recorded that did not tell: nothing is certain there.
        if self.started_ticks <= 0:
            return False
        try:
            ticks = started_ticks(self.pid)
        except PermissionError:
            return False  # It is another user's, and /proc hides those (hidepid).
        if ticks is None and not _is_no_process(self.pid):
            return False
        return ticks != self.started_ticks


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    return ProcessIdentity(
        hostname=socket.gethostname(),
        boot_id=boot_id(),
        pid_namespace=namespace("pid"),
        pid=os.getpid(),
        started_ticks=started_ticks(os.getpid()) or 0,
    )


def _is_no_process(pid: int) -> bool:
    """Whether the kernel knows no process of this id, or one that has ended.

    /proc may hide another user's (hidepid=2), as if there were none.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OverflowError:  # No process has such an id.
        return True
    except PermissionError:
        return False
    return True  # It is our own, and so would be in /proc: it has ended.


def started_ticks(pid: int) -> int | None:
    """When a process started, see ``ProcessStat``; None if there is none, or it has ended."""
    stat = processes.stat(pid)
    return None if stat is None or stat.has_ended else stat.started_ticks
