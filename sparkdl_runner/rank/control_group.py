"""The control groups of this process, for memory and processors, and their limits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PROCESS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_FILES = ("memory.events", "memory.oom_control", "cpu.max", "cpu.cfs_quota_us")
"""One of them is in each control group but the host's own, of version 2 or 1."""
_QUOTA = ("quota", "period")
_USED = ("memory.current", "memory.usage_in_bytes")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
# Version 1 says "no limit" by a number beyond any host's memory.
_NO_LIMIT = 1 << 60


def own_group() -> Path | None:
    """The directory of this process's memory control group, of version 2 or 1."""
    return next(iter(_groups()), None)


def limit_bytes() -> int | None:
    """The memory limit of this process's control group; None if there is no limit.

    A group keeps to the limits of those that it is in as well, so the least of them counts.
    """
    limits = [limit for group in _groups() if (limit := _limit(group)) is not None]
    return min(limits, default=None)


def free_bytes() -> int | None:
    """How far this process's control group is from its memory limit; None if there is no limit.

    Cached pages of files that nobody reads count as free.
    """
    free = []
    for group in _groups():
        with suppress(OSError, ValueError, StopIteration):
            used = next(name for name in _USED if (group / name).exists())
            told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            files = int(told.get("total_inactive_file", told.get("inactive_file", 0)))
            if (limit := _limit(group)) is not None:
                free.append(max(0, limit - int((group / used).read_text()) + files))
    return min(free, default=None)


def cpu_limit() -> float | None:
    """How many processors' time this process's control group may use; None if there is no limit."""
    return min(filter(None, map(_cpu_limit, _groups("cpu"))), default=None)


def throttled_seconds() -> float:
    """How long the process's control group was refused processors, summed up over them."""
    most = 0.0
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):
            told = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            # In version 2 microseconds, in version 1 nanoseconds.
            nanoseconds = int(told.get("throttled_time", 0))
            most = max(most, int(told.get("throttled_usec", 0)) / 1e6 + nanoseconds / 1e9)
    return most


def _groups(controller: str = "memory") -> list[Path]:
    """The process's own group, and those that it is in, as far as they can be seen."""
    try:
        lines = _PROCESS.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            root = _ROOT if number == "0" else _ROOT / controller
            # In a container the path is often that of the host, and our own group is the root.
            own = root / path.strip("/")
            above = [group for group in own.parents if group.is_relative_to(root)]
            files = [name for name in _FILES if name.startswith(controller)]
            groups = [
                group for group in (own, *above) if any((group / name).exists() for name in files)
            ]
            if groups:
                return groups
    return []


def _limit(group: Path) -> int | None:
    for name in _LIMITS:
        try:
            limit = int((group / name).read_text())
        except (OSError, ValueError):  # "max" is none
            continue
        return limit if limit < _NO_LIMIT else None
    return None


def _cpu_limit(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in _QUOTA)
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # "max" is none
        return None
