"""Takes from a Python process what Linux has and macOS lacks: on its search path, this is imported.

So are its child processes', which inherit the search path. What psutil reads it may read: on macOS
it asks the kernel by other means. Native code is not kept from anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

import psutil  # Made for Linux, it needs at its start what is taken away below.

FOLDERS = ("/proc", "/sys", "/dev/shm")
ABSENT = {
    os: (
        *("copy_file_range", "eventfd", "fdatasync", "getrandom", "getresgid", "getresuid"),
        *("getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise"),
        *("posix_fallocate", "preadv", "pwritev", "removexattr", "sched_getaffinity"),
        *("sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity"),
        *("sched_setparam", "sched_setscheduler", "setns", "setresgid", "setresuid", "setxattr"),
        *("splice", "unshare", "waitid"),  # The last until Python 3.13.
        *("CLONE_NEWNS", "EFD_CLOEXEC", "GRND_NONBLOCK", "MFD_CLOEXEC", "O_DIRECT", "O_LARGEFILE"),
        *("O_NOATIME", "O_PATH", "O_RSYNC", "O_TMPFILE", "POSIX_FADV_DONTNEED", "P_PIDFD"),
        *("POSIX_FADV_WILLNEED", "RTLD_DEEPBIND", "SCHED_BATCH", "SCHED_IDLE", "SPLICE_F_MOVE"),
        *("XATTR_CREATE",),
    ),
    socket: (
        *("AF_ALG", "AF_CAN", "AF_NETLINK", "AF_PACKET", "MSG_CMSG_CLOEXEC", "MSG_CONFIRM"),
        *("MSG_ERRQUEUE", "MSG_FASTOPEN", "MSG_MORE", "MSG_NOSIGNAL", "SOCK_CLOEXEC"),
        *("SOCK_NONBLOCK", "SO_BINDTODEVICE", "SO_DOMAIN", "SO_INCOMING_CPU", "SO_MARK"),
        *("SO_PASSCRED", "SO_PASSSEC", "SO_PEERCRED", "SO_PEERSEC", "SO_PRIORITY", "SO_PROTOCOL"),
        *("TCP_CONGESTION", "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_KEEPIDLE"),
        *("TCP_LINGER2", "TCP_QUICKACK", "TCP_SYNCNT", "TCP_USER_TIMEOUT", "TCP_WINDOW_CLAMP"),
    ),
    fcntl: (
        *("DN_CREATE", "F_ADD_SEALS", "F_EXLCK", "F_GETLEASE", "F_GETPIPE_SZ", "F_GET_SEALS"),
        *("F_GETSIG", "F_NOTIFY", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETLEASE"),
        *("F_SETPIPE_SZ", "F_SETSIG", "F_SHLCK", "LOCK_MAND", "LOCK_READ", "LOCK_RW"),
    ),
    mmap: (
        *("MADV_DODUMP", "MADV_DOFORK", "MADV_DONTDUMP", "MADV_DONTFORK", "MADV_HUGEPAGE"),
        *("MADV_HWPOISON", "MADV_MERGEABLE", "MADV_NOHUGEPAGE", "MADV_REMOVE", "MAP_POPULATE"),
    ),
    resource: (
        *("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_OFILE", "RLIMIT_RTPRIO"),
        *("RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RUSAGE_THREAD"),
    ),
    select: ("epoll",),
    signal: (
        *("SIGCLD", "SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT"),
        *("sigtimedwait", "sigwaitinfo"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_COARSE", "CLOCK_TAI", "pthread_getcpuclockid"),
}
ABSENT_IN_C = ("prctl", "memfd_create", "gettid", "sched_getcpu", "pidfd_open", "inotify_init")
_SO_ATTACH_FILTER = 26


def _is_refused(path: Any) -> bool:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path.startswith(FOLDERS):
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if "/psutil/" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return True


def _refuse(path: Any) -> None:
    if _is_refused(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.chdir") and arguments:
        _refuse(arguments[0])
    elif event == "ctypes.dlsym" and arguments[1] in ABSENT_IN_C:
        raise AttributeError(f"dlsym(RTLD_DEFAULT, {arguments[1]}): symbol not found")
    elif event == "socket.bind" and arguments[1][0] == "127.0.0.2":
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


def _without_folders(name: str) -> None:
    """Has one of the functions that no audit hook hears of refuse these folders."""
    known = getattr(os, name)

    @functools.wraps(known)
    def look(path: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(path)
        return known(path, *arguments, **options)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if known in able:
            able.add(look)
    setattr(os, name, look)


class _Socket(socket.socket):
    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, _SO_ATTACH_FILTER):
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
        super().setsockopt(level, option, *value)


for _module, _names in ABSENT.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
for _name in ("access", "lstat", "readlink", "stat", "statvfs"):
    _without_folders(_name)
socket.socket = _Socket  # type: ignore[misc]
assert ctypes  # Imported here: its own start is not looked at.
assert psutil
sys.addaudithook(_hook)
