"""Finds other users of this host, since any of them can connect to gloo's and NCCL's ports."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from sparkdl_runner.errors import LaunchError

# As login.defs(5) and systemd divide them: below are the system's own, whose administrators are
# trusted; in the second range are services that systemd gives a user for as long as they run.
FIRST_USER = 501 if sys.platform == "darwin" else 1000
DYNAMIC_USERS = range(61184, 65520)
NOBODY = 65534
_TABLES = ("tcp", "tcp6", "udp", "udp6")
_SHOWN = 5


def check_host_is_not_shared() -> None:
    """Refuses a host on which another user is seen.

    Raises:
        LaunchError: There is one.
    """
    others = sorted(other_users())
    if not others:
        return
    shown = ", ".join(map(str, others[:_SHOWN])) + (", …" if others[_SHOWN:] else "")
    raise LaunchError(
        f"Host {socket.gethostname()} is shared, and refuse_shared_hosts is set. Number of other "
        f"users with processes, sockets or logins there: {len(others)} (uid {shown}; this is uid "
        f"{os.geteuid()}). They could reach the ports of gloo and NCCL. Run where no one else is: "
        "on hosts of your own, or in containers with a network of their own."
    )


def other_users() -> frozenset[int]:
    """The ids of ordinary users other than this process's own that are seen on this host.

    A container may hide processes and share the network, and so do mounts of /proc that hide those
    of others: hence sockets and logins count as well.
    """
    seen = {process.info["uids"] for process in psutil.process_iter(["uids"])} - {None}
    users = {uids.real for uids in seen} | _with_sockets() | _logged_in()
    return frozenset(filter(is_ordinary, users - {os.getuid(), os.geteuid()}))


def is_ordinary(uid: int) -> bool:
    """Whether a user is a person or a job, rather than a part of the system."""
    return uid >= FIRST_USER and uid != NOBODY and uid not in DYNAMIC_USERS


def _with_sockets() -> set[int]:
    users = set()
    for table in _TABLES:
        with suppress(OSError):  # There is no IPv6 on some hosts.
            lines = Path("/proc/net", table).read_text(encoding="ascii").splitlines()
            users |= {int(line.split()[7]) for line in lines[1:]}
    return users


def _logged_in() -> set[int]:
    users = set()
    for login in psutil.users():
        with suppress(KeyError):  # It has been removed since.
            users.add(pwd.getpwnam(login.name).pw_uid)
    return users
