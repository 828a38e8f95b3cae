"""The leftovers of a run: processes, listening ports and temporary files."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

# Spark's own folders, and the logs that are kept on purpose.
_NOT_OURS = ("spark-", "blockmgr-", "hsperfdata", "liblz4-java", "sparkdl_runner-logs")
# An ended process takes a moment to disappear, and longer on a busy machine.
_SETTLING_SECONDS = 30.0

Belongings = dict[str, set[Any]]


def belongings() -> Belongings:
    """The workers, listening ports and temporary files that there are now."""
    driver = psutil.Process()
    workers, ports = set(), set()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            if "sparkdl_runner.launch.worker" in process.cmdline():
                workers.add(process.pid)
            parent = process.parent()
            # Java's and its children's, the daemons for Python, are Spark's own.
            if "java" in process.name() or (parent is not None and "java" in parent.name()):
                continue
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        ports |= {one.laddr for one in connections if one.status == "LISTEN"}
    names = (path.name for path in Path(tempfile.gettempdir()).iterdir())
    files = {name for name in names if not name.startswith(_NOT_OURS)}
    return {"processes": workers, "ports": ports, "files": files}


def leftovers(before: Belongings) -> list[str]:
    """The new processes, ports and files since ``before``, once there are none or for good."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        new = {kind: found - before[kind] for kind, found in belongings().items()}
        if not any(new.values()) or time.monotonic() > deadline:
            return [f"{kind}: {one}" for kind, left in new.items() for one in sorted(left, key=str)]
        time.sleep(0.1)
