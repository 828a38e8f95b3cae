"""Hosts that have vanished: Spark lists their executors for minutes, and would use them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.wire import network
from sparkdl_runner.world import World

if TYPE_CHECKING:
    from pyspark import SparkContext


class LostHosts:
    """The hosts that a run has lost, and does without until they come back.

    Args:
        context: The application's context.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._names: dict[str, str] = {}
        """By the address that ranks use."""
        self._addresses: set[str] = set()

    def add(self, world: World, addresses: Iterable[str]) -> None:
        """Takes a host that was not heard of any more, of which Spark may not know yet.

        Args:
            world: One of its ranks.
            addresses: All of its addresses: Spark may know it by another than its ranks use.
        """
        self._names[world.address] = world.host
        self._addresses |= {world.address}
        self._addresses |= {one for one in addresses if not network.is_loopback(one)}

    def leave_out(self) -> None:
        """Lets Spark give up the executors of these hosts, at once and for good.

        Their slots then neither count nor get tasks, and a host that comes back has them ended by
        Spark, which starts others in their place.
        """
        spark = self._context._jsc.sc()
        for identifier, address in self._executors():
            if address in self._addresses:
                with suppress(Exception):  # It may have gone meanwhile.
                    spark.killAndReplaceExecutor(identifier)
        for address, name in self._names.items():
            print(
                f"sparkdl_runner: host {name} ({address}) has vanished: its slots do not count "
                "until Spark has new executors there.",
                file=sys.stderr,
            )
        self._names.clear()
        self._addresses.clear()

    def _executors(self) -> list[tuple[str, str]]:
        """Each executor's name in Spark, and its IP address."""
        if not self._names:
            return []
        listed = self._context._jsc.sc().statusStore().executorList(True)
        found = []
        for number in range(listed.size()):
            executor = listed.apply(number)
            with suppress(OSError, ValueError):
                host = network.split_host_port(executor.hostPort())[0]
                found.append((executor.id(), network.resolve(host)))
        return [one for one in found if one[0] != "driver"]
