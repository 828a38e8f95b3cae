"""Hosts that have vanished: Spark lists their executors for minutes, and would use them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.time_limits import answer_within
from sparkdl_runner.launch.driver.spark import yarn
from sparkdl_runner.launch.driver.spark.executors import Executor, list_executors
from sparkdl_runner.launch.driver.spark.pods import replace_pods
from sparkdl_runner.launch.wire import network
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from pyspark import SparkContext

# How long an executor may take to accept a connection before it counts as gone with its host.
_ANSWER_SECONDS = 2.0
# Spark would wait two minutes for an application master that is gone.
_ASK_SECONDS = 10.0
# A manager brings another executor within this time.
REPLACEMENT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_MOST_LOOKS = 16


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
        self._executors: set[str] = set()
        """Those that were lost, if their host was, before a rank could say where it is."""
        # A standalone master has its own hosts alone, and starts executors there by itself.
        self._has_manager = (context.master or "").startswith(("yarn", "k8s://"))

    def add(self, world: World, addresses: Iterable[str]) -> None:
        """Takes a host that was not heard of any more, of which Spark may not know yet.

        Args:
            world: One of its ranks.
            addresses: All of its addresses: Spark may know it by another than its ranks use.
        """
        self._names[world.address] = world.host
        self._addresses |= {world.address}
        self._addresses |= {address for address in addresses if not network.is_loopback(address)}

    def add_executors(self, executors: Iterable[str]) -> None:
        """Takes executors that were given tasks, and of which nothing was ever heard.

        Their host may have vanished while they started. Those that answer are left alone.
        """
        self._executors |= set(executors)

    def replace_executors(self) -> float:
        """Lets Spark give up the executors of these hosts, and asks its manager for others.

        The slots of executors that are given up neither count nor get tasks, and a host that comes
        back has them ended by Spark. An executor that still answers is left alone: it may work for
        others.

        Returns:
            How many seconds it may take until what was asked for is there; 0 if nothing was.
        """
        if not self._names and not self._executors:
            return 0.0
        try:
            listed = list_executors(self._context)
        except Exception:  # The session has ended, as the wait for slots then tells.
            return 0.0
        lost = [
            executor
            for executor in listed
            if executor.identifier in self._executors or self._is_lost(executor.host)
        ]
        with ThreadPoolExecutor(_MOST_LOOKS) as looks:
            answers = list(looks.map(_answers, lost))
        gone = [
            executor.identifier
            for executor, is_there in zip(lost, answers, strict=True)
            if not is_there
        ]
        # Spark itself has given up others meanwhile, but for their pods.
        gone += sorted(self._executors - {executor.identifier for executor in listed})
        for address, name in self._names.items():
            tell(f"host {name} ({address}) has vanished: its slots do not count any more.")
        if gone:
            tell(
                "Spark is asked for other executors in place of "
                f"{', '.join(gone)}: its cluster manager may miss a host for minutes."
            )
        if bool(self._names) and answer_within(
            _ASK_SECONDS, lambda: yarn.replace_master(self._context, self._is_lost)
        ):
            self._wait_until_gone({executor.identifier for executor in listed})
        elif gone:
            answer_within(_ASK_SECONDS, lambda: self._replace(gone))
            replace_pods(self._context, gone)
        self._names.clear()
        self._addresses.clear()
        self._executors.clear()
        return REPLACEMENT_SECONDS if gone and self._has_manager else 0.0

    def _replace(self, executors: list[str]) -> None:
        for executor in executors:
            with suppress(Exception):  # It may have gone meanwhile.
                self._context._jsc.sc().killAndReplaceExecutor(executor)

    def _wait_until_gone(self, executors: set[str]) -> None:
        deadline = time.monotonic() + REPLACEMENT_SECONDS
        while time.monotonic() < deadline:
            if not executors & {executor.identifier for executor in list_executors(self._context)}:
                return
            time.sleep(_POLL_SECONDS)

    def _is_lost(self, host: str) -> bool:
        try:
            return network.resolve(host) in self._addresses
        except OSError:
            return False


def _answers(executor: Executor) -> bool:
    host, port = executor.host, executor.port
    return port != 0 and network.answers(host, port, _ANSWER_SECONDS)
