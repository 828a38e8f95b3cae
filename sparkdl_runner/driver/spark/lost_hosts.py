"""Hosts that have vanished: Spark lists their executors for minutes, and would use them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.driver.spark.executors import list_executors
from sparkdl_runner.shown_text import tell
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
        """Names of hosts, by the address that ranks use."""
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
        for executor in list_executors(self._context) if self._names else ():
            with suppress(Exception):  # It may have gone meanwhile.
                if network.resolve(executor.host) in self._addresses:
                    spark.killAndReplaceExecutor(executor.identifier)
        for address, name in self._names.items():
            tell(
                f"host {name} ({address}) has vanished: its slots do not count until Spark has new "
                "executors there."
            )
        self._names.clear()
        self._addresses.clear()
