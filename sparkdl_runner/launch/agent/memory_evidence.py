"""Tells from the kernel's counters whether it killed a process because memory ran out."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from sparkdl_runner.rank import control_group

_LOOKS = 5


class MemoryEvidence:
    """Remembers the kernel's counts of out-of-memory kills, to see which has just grown."""

    def __init__(self) -> None:
        self._seen: deque[dict[str, int]] = deque([_counts()], maxlen=_LOOKS)

    def look(self) -> None:
        """Reads the counters. Kills that are older than the last few looks explain nothing new."""
        self._seen.append(_counts())

    def verdict(self) -> str | None:
        """A sentence on the kill that came since, or None if the kernel counted none."""
        now = _counts()
        grown = [name for name, count in now.items() if count > self._seen[0].get(name, count)]
        limit = control_group.limit_bytes()
        if "cgroup" in grown and limit is not None:
            return _OF_CONTAINER.format(limit=limit)
        return _OF_HOST if grown else None


_OF_CONTAINER = (
    "The kernel's out-of-memory killer ended it: the memory limit of its container "
    "(cgroup, {limit:,} bytes) was reached. Give the executor more memory "
    "(spark.executor.memoryOverhead, spark.executor.pyspark.memory), or use less: smaller "
    "batches, a smaller memory_budget_bytes."
)
_OF_HOST = (
    "The kernel's out-of-memory killer ended a process of this host at that time: the host ran "
    "out of memory. Start fewer ranks per host, or use less memory in each."
)


def _counts() -> dict[str, int]:
    counts = {"host": _oom_kills(Path("/proc/vmstat"))}
    group = control_group.own_group()
    if group is not None:
        events = group / "memory.events"
        counts["cgroup"] = _oom_kills(events if events.exists() else group / "memory.oom_control")
    return {name: count for name, count in counts.items() if count is not None}


def _oom_kills(path: Path) -> int | None:
    try:
        counters = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None
