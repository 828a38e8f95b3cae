"""The memory control group of this process, and the limit that it sets."""

from __future__ import annotations

from pathlib import Path

_PROCESS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_FILES = ("memory.events", "memory.oom_control")
"""One of them is in each memory control group but the host's own, of version 2 or 1."""
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


def _groups() -> list[Path]:
    """The process's own group, and those that it is in, as far as they can be seen."""
    try:
        lines = _PROCESS.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            root = _ROOT if number == "0" else _ROOT / "memory"
            # In a container the path is often that of the host, and our own group is the root.
            own = root / path.strip("/")
            above = [group for group in own.parents if group.is_relative_to(root)]
            groups = [
                group for group in (own, *above) if any((group / name).exists() for name in _FILES)
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
