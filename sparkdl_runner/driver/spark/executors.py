"""The executors that Spark lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl_runner.wire import network

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True, kw_only=True)
class Executor:
    """One executor that Spark takes for active."""

    identifier: str
    """Spark's own name for it; another executor of the same host has another."""
    host: str
    """The name or address by which Spark knows its host."""
    tasks: int
    """How many tasks it runs just now, of any job of the application."""


def list_executors(context: SparkContext) -> list[Executor]:
    """All of them but the driver's own."""
    listed = context._jsc.sc().statusStore().executorList(True)
    found = [listed.apply(number) for number in range(listed.size())]
    return [
        Executor(
            identifier=one.id(),
            host=_host(one.hostPort()),
            tasks=one.activeTasks(),
        )
        for one in found
        if one.id() != "driver"
    ]


def _host(address: str) -> str:
    # An executor has no port yet, just after Spark has learned of it.
    try:
        return network.split_host_port(address)[0]
    except ValueError:
        return address.strip("[]")
