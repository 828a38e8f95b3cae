"""What executors and tasks ask of a cluster that gives them nothing, and what its workers have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.foreign_file import parse_json
from sparkdl_runner.launch.driver.spark.context import settings_of
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.short_answer import ask

if TYPE_CHECKING:
    from pyspark import SparkContext

_SCHEME, _PAGE_SECONDS, _MOST_BYTES = "spark://", 2.0, 1 << 22
CORES, MEMORY = "spark.executor.cores", "spark.executor.memory"
GPUS, TASK_CPUS = "spark.executor.resource.gpu.amount", "spark.task.cpus"
TASK_GPUS = "spark.task.resource.gpu.amount"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The sizes that an executor must have, as Spark's settings say."""

    cores: int | None
    """None for all of a worker's."""
    memory_mib: int
    gpus: int
    task_cores: int
    task_gpus: float


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The sizes of a worker of a standalone master, busy or not."""

    cores: int
    memory_mib: int
    gpus: int


def nothing_fits(context: SparkContext) -> tuple[str, str]:
    """Why a cluster has not one slot, as far as settings and the master's page tell.

    Returns:
        What was asked, and what workers have, in sentences; and which settings to lower, empty if
        none is known to be too high.
    """
    settings = settings_of(context)
    cores = settings.get(CORES)
    asked = Asked(
        cores=int(cores) if cores else None,
        memory_mib=_memory_mib(context),
        gpus=int(settings.get(GPUS) or 0),
        task_cores=int(settings.get(TASK_CPUS) or 1),
        task_gpus=float(settings.get(TASK_GPUS) or 0),
    )
    page_port = int(settings.get("spark.master.ui.port") or 8080)
    workers = [] if context.master is None else _workers(context.master, page_port)
    return described(asked, workers)


def described(asked: Asked, workers: list[Worker]) -> tuple[str, str]:
    """See ``nothing_fits``.

    Args:
        asked: What executors must have.
        workers: The cluster's, as far as they are known.
    """
    cores = "all cores of a worker" if asked.cores is None else f"{asked.cores} cores ({CORES})"
    executor = [cores, f"{asked.memory_mib} MiB of memory ({MEMORY})"]
    task = [f"{asked.task_cores} of its cores ({TASK_CPUS})"]
    if asked.gpus:
        executor.append(f"{asked.gpus} GPUs ({GPUS})")
        task.append(f"{asked.task_gpus:g} GPUs ({TASK_GPUS})")
    text = f"An executor asks for {' and '.join(executor)}, and a task for {' and '.join(task)}."
    if not workers:
        return text, ""
    most = Worker(
        cores=max(worker.cores for worker in workers),
        memory_mib=max(worker.memory_mib for worker in workers),
        gpus=max(worker.gpus for worker in workers),
    )
    has = f"{most.cores} cores, {most.memory_mib} MiB and {most.gpus} GPUs"
    text += f" Of the workers that are there ({len(workers)}), none has more than {has}."
    lower = [
        f"{setting} to {there} or less"
        for setting, wanted, there in (
            (CORES, asked.cores or 0, f"{most.cores}"),
            (MEMORY, asked.memory_mib, f"{most.memory_mib}m"),
            (GPUS, asked.gpus, f"{most.gpus}"),
            (TASK_CPUS, asked.task_cores, f"{asked.cores or most.cores}"),
        )
        if wanted > int(there.rstrip("m"))
    ]
    return text, f"Lower {' and '.join(lower)}" if lower else ""


def _memory_mib(context: SparkContext) -> int:
    return int(context._jsc.sc().executorMemory())


def _workers(master: str, page_port: int) -> list[Worker]:
    """The workers that a standalone master's page lists; none if it is not to be had."""
    if not master.startswith(_SCHEME):
        return []
    for address in master.removeprefix(_SCHEME).split(","):
        with suppress(Exception):  # It does not answer, or with another page.
            host = network.split_host_port(address)[0]
            if workers := workers_of(_page(host, page_port)):
                return workers
    return []


def workers_of(page: dict[str, Any]) -> list[Worker]:
    """The living workers of the JSON form of a master's page."""
    return [
        Worker(
            cores=int(worker["cores"]),
            memory_mib=int(worker["memory"]),
            gpus=len(worker.get("resources", {}).get("gpu", {}).get("addresses", ())),
        )
        for worker in page["workers"]
        if worker["state"] == "ALIVE"
    ]


def _page(host: str, port: int) -> dict[str, Any]:
    answer = ask(host, port, "/json/", most_seconds=_PAGE_SECONDS, most_bytes=_MOST_BYTES)
    page: dict[str, Any] = parse_json(answer.body)
    return page
