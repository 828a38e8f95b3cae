"""The executors that Spark lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl_runner.launch.wire import network

if TYPE_CHECKING:
    from pyspark import SparkContext

# No stage has more tasks.
_MOST_TASKS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Executor:
    """One executor that Spark takes for active."""

    identifier: str
    """Spark's own name for it; another executor of the same host has another."""
    host: str
    """The name or address by which Spark knows its host."""
    tasks: int
    """How many tasks it runs just now, of any job of the application."""
    port: int = 0
    """Its TCP port on that host; 0 if Spark does not know it yet."""


def list_executors(context: SparkContext) -> list[Executor]:
    """All of them but the driver's own."""
    listed = context._jsc.sc().statusStore().executorList(True)
    executors = [listed.apply(number) for number in range(listed.size())]
    return [
        Executor(
            identifier=executor.id(), tasks=executor.activeTasks(), **_place(executor.hostPort())
        )
        for executor in executors
        if executor.id() != "driver"
    ]


def _place(address: str) -> dict[str, Any]:
    # An executor has no port yet, just after Spark has learned of it.
    try:
        host, port = network.split_host_port(address)
    except ValueError:
        host, port = address.strip("[]"), 0
    return {"host": host, "port": port}


def executors_of(context: SparkContext, tag: str) -> dict[str, set[int]]:
    """The partitions of a job of one stage, by the name of the executor that runs them.

    Those that are known if the session has ended, or ends meanwhile.
    """
    partitions: dict[str, set[int]] = {}
    with suppress(Exception):
        for task in tasks_of(context, tag):
            partitions.setdefault(task.executorId(), set()).add(task.index())
    return partitions


def tasks_of(context: SparkContext, tag: str) -> Iterator[Any]:
    """What Spark tells of each start of a task of a job of one stage."""
    spark = context._jsc.sc()
    for job in spark.statusTracker().getJobIdsForTag(tag):
        info = context.statusTracker().getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = spark.statusStore().taskList(stage, 0, _MOST_TASKS)
            for number in range(tasks.size()):
                yield tasks.apply(number)


def hosts_of(context: SparkContext, tag: str, partitions: Collection[int]) -> list[str]:
    """The hosts where Spark has started tasks of a job, each by name and address.

    Args:
        context: The application's context.
        tag: The job's.
        partitions: Those of the tasks.
    """
    executors = executors_of(context, tag)
    names = {name for name, tasks in executors.items() if tasks & set(partitions)}
    hosts: set[str] = set()
    with suppress(Exception):  # The session ends meanwhile.
        hosts = {
            executor.host for executor in list_executors(context) if executor.identifier in names
        }
    return sorted(map(_with_address, hosts))


def silent_hosts(context: SparkContext, tag: str, partitions: Collection[int]) -> str:
    """A sentence on the hosts of tasks that Spark has started and nobody has heard of."""
    hosts = ", ".join(hosts_of(context, tag, partitions))
    return f" Spark has started tasks on {hosts} that were never heard of." if hosts else ""


def _with_address(host: str) -> str:
    try:
        address = network.resolve(host)
    except OSError:
        return f"{host} (whose address the driver does not know)"
    return host if address == host else f"{host} ({address})"


def has_tasks(context: SparkContext, tag: str) -> bool:
    """Whether Spark has started tasks of the job of a tag."""
    jobs = context._jsc.sc().statusTracker().getJobIdsForTag(tag)
    return any(_has_tasks(context, job) for job in jobs)


def jobs_with_tasks(context: SparkContext, tag: str) -> list[str]:
    """The other active jobs of which Spark has started tasks.

    Args:
        context: The application's context.
        tag: That of our own job.
    """
    spark = context._jsc.sc()
    own = set(spark.statusTracker().getJobIdsForTag(tag))
    jobs = []
    for number in sorted(set(context.statusTracker().getActiveJobsIds()) - own):
        if _has_tasks(context, number):
            job = spark.statusStore().job(number)
            described = job.description()
            label = described.get() if described.isDefined() else job.name()
            jobs.append(f"job {number} ({label})")
    return jobs


def _has_tasks(context: SparkContext, job: int) -> bool:
    # What Spark tells of a job and its stages may be 10 s old. Tasks are listed when they start.
    store = context._jsc.sc().statusStore()
    info = context.statusTracker().getJobInfo(job)
    return info is not None and any(store.taskCount(stage, 0) for stage in info.stageIds)
