"""What Linux has and macOS lacks: folders, names in Python's modules, functions of C."""

from __future__ import annotations

FOLDERS = ("/proc", "/sys", "/dev/shm")
NAMES = {
    "os": (
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
    "socket": (
        *("AF_ALG", "AF_CAN", "AF_NETLINK", "AF_PACKET", "MSG_CMSG_CLOEXEC", "MSG_CONFIRM"),
        *("MSG_ERRQUEUE", "MSG_FASTOPEN", "MSG_MORE", "MSG_NOSIGNAL", "SOCK_CLOEXEC"),
        *("SOCK_NONBLOCK", "SO_BINDTODEVICE", "SO_DOMAIN", "SO_INCOMING_CPU", "SO_MARK"),
        *("SO_PASSCRED", "SO_PASSSEC", "SO_PEERCRED", "SO_PEERSEC", "SO_PRIORITY", "SO_PROTOCOL"),
        *("TCP_CONGESTION", "TCP_CORK", "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_KEEPIDLE"),
        *("TCP_LINGER2", "TCP_QUICKACK", "TCP_SYNCNT", "TCP_USER_TIMEOUT", "TCP_WINDOW_CLAMP"),
    ),
    "fcntl": (
        *("DN_CREATE", "F_ADD_SEALS", "F_EXLCK", "F_GETLEASE", "F_GETPIPE_SZ", "F_GET_SEALS"),
        *("F_GETSIG", "F_NOTIFY", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETLEASE"),
        *("F_SETPIPE_SZ", "F_SETSIG", "F_SHLCK", "LOCK_MAND", "LOCK_READ", "LOCK_RW"),
    ),
    "mmap": (
        *("MADV_DODUMP", "MADV_DOFORK", "MADV_DONTDUMP", "MADV_DONTFORK", "MADV_HUGEPAGE"),
        *("MADV_HWPOISON", "MADV_MERGEABLE", "MADV_NOHUGEPAGE", "MADV_REMOVE", "MAP_POPULATE"),
    ),
    "resource": (
        *("prlimit", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_OFILE", "RLIMIT_RTPRIO"),
        *("RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RUSAGE_THREAD"),
    ),
    "select": ("epoll",),
    "signal": (
        *("SIGCLD", "SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT"),
        *("sigtimedwait", "sigwaitinfo"),
    ),
    "time": ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC_COARSE", "CLOCK_TAI", "pthread_getcpuclockid"),
}
IN_C = ("prctl", "memfd_create", "gettid", "sched_getcpu", "pidfd_open", "inotify_init")
