"""The limit that Spark sets on the address space of its Python workers, and ours would inherit."""

from __future__ import annotations

import resource
import socket


def lift_limit(pid: int) -> str:
    """Lets a worker have all of its host's address space again.

    Spark enforces ``spark.executor.pyspark.memory`` by RLIMIT_AS. torch and CUDA reserve many times
    the address space that they use.

    Args:
        pid: The worker's process, or that of its template.

    Returns:
        A sentence for the user if the kernel forbids it; empty if the limit is lifted.
    """
    if not hasattr(resource, "prlimit"):
        return ""  # Nor does macOS keep to that limit.
    try:
        limit = resource.prlimit(pid, resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return ""
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
        return ""
    except ProcessLookupError:
        return ""  # How it ended is told elsewhere.
    except PermissionError:
        return (
            f"sparkdl_runner: on host {socket.gethostname()}, ranks may use {limit / 2**20:.0f} "
            "MiB of address space, as spark.executor.pyspark.memory or ulimit -v says. torch and "
            "CUDA reserve far more than they use, and may fail: leave that setting out, and give "
            "spark.executor.memoryOverhead what ranks need."
        )
