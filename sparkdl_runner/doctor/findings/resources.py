"""Is there space, memory and room for open files on a host, and can it write where it must?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkdl_runner.doctor.findings.finding import (
    DRIVER,
    Finding,
    not_checked,
    ok,
    problem,
    warning,
)
from sparkdl_runner.filesystem import redact

GIB = 1 << 30
MIB = 1 << 20
LEAST_FREE_BYTES = 100 * MIB
ROOMY_BYTES = 2 * GIB
# torch's loaders and NCCL exchange data there; containers have 64 MiB unless told otherwise.
ROOMY_SHARED_BYTES = 512 * MIB
ROOMY_MEMORY_BYTES = GIB
LEAST_OPEN_FILES = 1024


def judge_space(facts: dict[str, Any], where: str) -> Iterator[Finding]:
    """Whether disks have space."""
    check = "disk"
    for path, directory in facts["directories"].items():
        place = f"{path} ({directory['purpose']})"
        free = directory.get("free_bytes")
        advice = (
            f"Make room in {path}, or use another disk: TMPDIR for temporary files, "
            "spark.local.dir for Spark's, RunConfig(log_directory=…) for logs."
        )
        expected = f"{_size(ROOMY_BYTES)} free or more"
        if "error" in directory:
            free_words = "" if free is None else f" ({_size(free)} free)"
            yield problem(
                check,
                f"{place} cannot be written: {directory['error']}{free_words}.",
                expected=expected,
                advice=advice,
                where=where,
            )
        elif free < LEAST_FREE_BYTES or directory.get("free_inodes") == 0:
            what = "no inode" if directory.get("free_inodes") == 0 else _size(free)
            yield problem(
                check,
                f"{place} is full: {what} is free.",
                expected=expected,
                advice=advice,
                where=where,
            )
        elif free < ROOMY_BYTES:
            yield warning(
                check,
                f"{place} has only {_size(free)} left.",
                expected=expected,
                advice=advice,
                where=where,
            )
        else:
            yield ok(check, f"{place}: {_size(free)} free", where)


def judge_limits(facts: dict[str, Any], where: str) -> Iterator[Finding]:
    """Whether there is shared memory, memory, and room for open files."""
    shared = facts["shared_memory"]
    if shared is None or shared.get("free_bytes", 0) < ROOMY_SHARED_BYTES:
        found = "There is no /dev/shm."
        if shared is not None:
            found = f"/dev/shm has {_size(shared.get('free_bytes', 0))} left."  # noqa: S108
        yield warning(
            "shared_memory",
            found,
            expected=f"{_size(ROOMY_SHARED_BYTES)} or more; torch's loaders and NCCL use it",
            advice="Give the container more: docker run --shm-size=2g; on Kubernetes an emptyDir "
            "with medium: Memory on /dev/shm.",
            where=where,
        )
    else:
        yield ok("shared_memory", f"/dev/shm: {_size(shared['free_bytes'])} free", where)  # noqa: S108
    yield _judge_memory(facts["memory"], where)
    files = facts["open_files"]
    if 0 <= files < LEAST_OPEN_FILES:
        yield warning(
            "open_files",
            f"A process may open {files} files.",
            expected=f"{LEAST_OPEN_FILES} or more",
            advice="Raise the limit: ulimit -n 65536, LimitNOFILE= of the service, or "
            "/etc/security/limits.conf.",
            where=where,
        )
    else:
        yield ok("open_files", f"{files if files >= 0 else 'any number of'} per process", where)


def _judge_memory(memory: dict[str, Any], where: str) -> Finding:
    free, words = memory.get("available_bytes"), "of the host"
    if "limit_bytes" in memory:
        left = memory["limit_bytes"] - memory["used_bytes"]
        if free is None or left < free:
            free, words = left, f"of the container's {_size(memory['limit_bytes'])}"
    if free is None:
        return not_checked("memory", "/proc/meminfo cannot be read", where)
    if free < ROOMY_MEMORY_BYTES:
        return warning(
            "memory",
            f"{_size(free)} {words} is free.",
            expected=f"{_size(ROOMY_MEMORY_BYTES)} or more for each rank",
            advice="Give the executors' containers more (spark.executor.memoryOverhead; the "
            "container's own limit), or end what else runs there.",
            where=where,
        )
    return ok("memory", f"{_size(free)} {words} is free", where)


def judge_folders(facts: dict[str, Any], where: str) -> Iterator[Finding]:
    """Whether a host can write where all hosts must, and sees what the driver has written."""
    check = "folder"
    for url, tried in facts["folders"].items():
        shown = redact(url)
        if "error" in tried:
            yield problem(
                check,
                f"{shown} cannot be written: {str(tried['error']).rstrip('.')}.",
                expected="a folder that every host can write",
                advice="Give the user that Spark runs as write access there, mount it on every "
                "host, and give the processes its credentials by their environment.",
                where=where,
            )
        elif where != DRIVER and not tried.get("seen"):
            yield problem(
                check,
                f"{shown} here is not the driver's: the file that it wrote is not there.",
                expected="one folder that all hosts share",
                advice="Use shared storage: a mounted network folder, /Volumes/…, s3a://…, "
                "abfss://…, gs://….",
                where=where,
            )
        else:
            yield ok(check, f"{shown} can be written", where)


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes} bytes"
