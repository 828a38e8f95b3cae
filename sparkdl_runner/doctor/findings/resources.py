"""Is there space, memory and room for open files on a host, and can it write where it must?"""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl_runner.base.filesystem import redact
from sparkdl_runner.doctor.findings.checks import HOST, Place
from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem, warning

GIB = 1 << 30
MIB = 1 << 20
LEAST_FREE_BYTES = 100 * MIB
ROOMY_BYTES = 2 * GIB
# torch's loaders and NCCL exchange data there; containers have 64 MiB unless told otherwise.
ROOMY_SHARED_BYTES = 512 * MIB
ROOMY_MEMORY_BYTES = GIB
LEAST_OPEN_FILES = 1024


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes} bytes"


@HOST("disk", expected=f"{_size(ROOMY_BYTES)} free or more")
def disk(host: Place) -> Iterator[Finding]:
    """Whether disks have space."""
    for path, directory in host.facts["directories"].items():
        place, free = f"{path} ({directory['purpose']})", directory.get("free_bytes")
        advice = (
            f"Make room in {path}, or use another disk: TMPDIR for temporary files, "
            "spark.local.dir for Spark's, RunConfig(log_directory=…) for logs."
        )
        if "error" in directory:
            left = "" if free is None else f" ({_size(free)} free)"
            yield problem(f"{place} cannot be written: {directory['error']}{left}.", advice=advice)
        elif directory.get("free_inodes") == 0:
            yield problem(f"{place} is full: no inode is free.", advice=advice)
        elif free < LEAST_FREE_BYTES:
            yield problem(f"{place} is full: {_size(free)} is free.", advice=advice)
        elif free < ROOMY_BYTES:
            yield warning(f"{place} has only {_size(free)} left.", advice=advice)
        else:
            yield ok(f"{place}: {_size(free)} free")


@HOST(
    "shared_memory",
    expected=f"{_size(ROOMY_SHARED_BYTES)} or more; torch's loaders and NCCL use it",
)
def shared_memory(host: Place) -> Finding:
    """Whether there is shared memory."""
    shared = host.facts["shared_memory"]
    free = 0 if shared is None else shared.get("free_bytes", 0)
    if free >= ROOMY_SHARED_BYTES:
        return ok(f"/dev/shm: {_size(free)} free")  # noqa: S108
    if shared is None and host.facts["system"] != "Linux":
        return not_checked(f"{host.facts['system']} has no /dev/shm, and needs none")
    left = "is not there" if shared is None else f"has {_size(free)} left"
    return warning(
        f"/dev/shm {left}.",  # noqa: S108
        advice="Give the container more: docker run --shm-size=2g; on Kubernetes an emptyDir with "
        "medium: Memory on /dev/shm.",
    )


@HOST("memory", expected=f"{_size(ROOMY_MEMORY_BYTES)} or more for each rank")
def memory(host: Place) -> Finding:
    """Whether the host, and its container, have memory left."""
    seen = host.facts["memory"]
    free, of_what = seen.get("available_bytes"), "of the host"
    if "limit_bytes" in seen:
        left = seen["limit_bytes"] - seen["used_bytes"]
        if free is None or left < free:
            free, of_what = left, f"of the container's {_size(seen['limit_bytes'])}"
    if free is None:
        return not_checked("/proc/meminfo cannot be read")
    if free >= ROOMY_MEMORY_BYTES:
        return ok(f"{_size(free)} {of_what} is free")
    return warning(
        f"{_size(free)} {of_what} is free.",
        advice="Give the executors' containers more (spark.executor.memoryOverhead; the "
        "container's own limit), or end what else runs there.",
    )


@HOST("open_files", expected=f"{LEAST_OPEN_FILES} or more")
def open_files(host: Place) -> Finding:
    """Whether a process may open enough files; -1 stands for any number."""
    files = host.facts["open_files"]
    if not 0 <= files < LEAST_OPEN_FILES:
        return ok(f"{files if files >= 0 else 'any number of'} per process")
    return warning(
        f"A process may open {files} files.",
        advice="Raise the limit: ulimit -n 65536, LimitNOFILE= of the service, or "
        "/etc/security/limits.conf.",
    )


@HOST("folder")
def folder(host: Place) -> Iterator[Finding]:
    """Whether a host can write where all hosts must, and sees what the driver has written."""
    for url, tried in host.facts["folders"].items():
        shown = redact(url)
        if "error" in tried:
            yield problem(
                f"{shown} cannot be written: {str(tried['error']).rstrip('.')}.",
                expected="a folder that every host can write",
                advice="Give the user that Spark runs as write access there, mount it on every "
                "host, and give the processes its credentials by their environment.",
            )
        elif not host.is_driver and not tried.get("seen"):
            yield problem(
                f"{shown} here is not the driver's: the file that it wrote is not there.",
                expected="one folder that all hosts share",
                advice="Use shared storage: a mounted network folder, /Volumes/…, s3a://…, "
                "abfss://…, gs://….",
            )
        else:
            yield ok(f"{shown} can be written")
