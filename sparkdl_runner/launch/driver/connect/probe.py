"""What a session's executors have and whom they reach, by one query."""

from __future__ import annotations

import json
import platform
import secrets
import socket
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.base.version import __version__
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.connect import package, probe_task
from sparkdl_runner.launch.driver.connect.by_value import send_by_value
from sparkdl_runner.launch.driver.connect.query import ServerQuery
from sparkdl_runner.launch.driver.connect.session import in_a_sentence, server_of, setting
from sparkdl_runner.launch.driver.connect.tunnel import tunnel
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire import network

PACKAGE = "sparkdl_runner"
# Packages that an agent imports, besides this one and pyspark.
NEEDED = ("cloudpickle", "numpy", "psutil", "pyarrow")
# As many rows as give each core a task.
_ROWS = 1 << 20
_TOKEN_BYTES = 16
# A relay's answer comes with the client's next question.
_RELAY_SECONDS = 10.0
# These decide what a range without a number of partitions has; they hide the number of cores.
_HIDING = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The answers of a session's executors to the probe, taken together."""

    slots: int | None
    """How many ranks run at once; None if that cannot be told."""
    address: str | None
    """This host's address that all executors reach; None if there is none."""
    no_relay: str
    """Without an address: why no relay carries what agents send; empty if one does."""

    @property
    def is_single_host(self) -> bool:
        """Whether all tasks run on the client's host."""
        return self.address == network.LOOPBACK


_known: WeakKeyDictionary[Any, dict[Any, Surroundings]] = WeakKeyDictionary()


def known(
    session: Any, config: RunConfig, modules: Sequence[str], stop: StopRequest
) -> Surroundings:
    """What an earlier call of ``probe`` with such a config has found, else what it finds now."""
    found = _known.setdefault(session, {}).get(_key(config, modules))
    try:
        return found or probe(session, config, modules, stop)
    except RunnerError as error:
        if type(error) is RunnerError:  # Its server is lost, and nothing has run.
            raise LaunchError(str(error)) from error
        raise


def probe(
    session: Any, config: RunConfig, modules: Sequence[str], stop: StopRequest
) -> Surroundings:
    """Asks all executors of a session, and sends them this package where it is missing.

    Args:
        session: The Spark Connect session.
        config: Names the interface and the ports of the channel.
        modules: What the ranks' backend imports.
        stop: May end the wait for an answer: a query needs a free slot.

    Returns:
        What it found.

    Raises:
        LaunchError: They lack a package, or have another version of Python.
        RunCancelledError: It was cancelled, or the session stopped.
        RunnerError: The server is gone.
    """
    with in_a_sentence(session):
        rows = _ask(session, config, modules, stop)
        if any(one["package"] != __version__ for one in rows):
            package.send(session)
            rows = _ask(session, config, modules, stop)
    for one in rows:
        _check(one)
    addresses = [tuple(address) for address in rows[0]["reached"]]
    reached = [one[0] for one in addresses if all(list(one) in other["reached"] for other in rows)]
    hidden = any(setting(session, name) for name in _HIDING)
    found = Surroundings(
        slots=None if hidden else len(rows) // max(one["cpus"] for one in rows),
        address=reached[0] if reached else None,
        no_relay="" if reached else _no_relay(session, config, modules, stop),
    )
    _known.setdefault(session, {})[_key(config, modules)] = found
    return found


def slots_of(session: Any) -> int:
    """How many ranks run at once, as earlier probes have found; 0 if none did, or cannot tell."""
    return max((found.slots or 0 for found in _known.get(session, {}).values()), default=0)


def _key(config: RunConfig, modules: Sequence[str]) -> Hashable:
    return config.network_interface, config.port_range, tuple(modules)


def _ask(
    session: Any, config: RunConfig, modules: Sequence[str], stop: StopRequest
) -> list[dict[str, Any]]:
    token = secrets.token_bytes(_TOKEN_BYTES)
    with _listening(_own_addresses(session, config), config.port_range, token) as addresses:
        return _told(session, _task(addresses, token, modules), stop)


def _no_relay(session: Any, config: RunConfig, modules: Sequence[str], stop: StopRequest) -> str:
    """Why executors do not reach this client by a relay either; empty if they do."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    try:
        with (
            _listening([network.LOOPBACK], None, token) as own,
            tunnel(session, config, own[0]) as address,
        ):
            task = replace(_task([address], token, modules), try_seconds=_RELAY_SECONDS)
            told = _told(session, task, stop)
    except RunnerError:
        raise
    except Exception as error:  # An older Spark, or one that runs no user's code at its driver.
        return first_line(error)
    missing = [one["host"] for one in told if not one["reached"]]
    return f"host {missing[0]} does not reach {address[0]}:{address[1]}" if missing else ""


def _task(
    addresses: Sequence[tuple[str, int]], token: bytes, modules: Sequence[str]
) -> probe_task.ProbeTask:
    return probe_task.ProbeTask(
        addresses=addresses, token=token, modules=[*NEEDED, *modules], package=PACKAGE
    )


def _told(session: Any, task: probe_task.ProbeTask, stop: StopRequest) -> list[dict[str, Any]]:
    send_by_value(probe_task)
    answers = session.range(_ROWS).mapInArrow(task, "told string")
    with ExitStack() as stack:
        query = stack.enter_context(closing(ServerQuery(session, answers.collect, slots=1)))
        stack.enter_context(stop.told_to(lambda reason: None, query.interrupt))
        try:
            return [json.loads(row.told) for row in query.result()]
        except BaseException:
            query.cancel()
            raise


def _own_addresses(session: Any, config: RunConfig) -> list[str]:
    """Addresses of this host at which executors may reach it, the likeliest first."""
    if config.network_interface is not None:
        found = network.address_on(config.network_interface)
        if found is not None:
            return [found[0]]
    addresses = []
    with suppress(OSError):
        host, _ = server_of(session)
        server = network.resolve(host)
        if network.is_loopback(server):
            addresses += [network.LOOPBACK, network.own_address(socket.gethostname())[0]]
        else:
            addresses.append(network.source_address(server))
    return list(dict.fromkeys(addresses))


@contextmanager
def _listening(
    addresses: Sequence[str], port_range: network.PortRange | None, token: bytes
) -> Iterator[list[tuple[str, int]]]:
    """Says the token at each of the addresses, to whoever comes."""
    listeners = []
    for address in addresses:
        with suppress(OSError):
            listeners.append(network.listen(address, port_range))
    try:
        for one in listeners:
            threading.Thread(target=_say, args=(one, token), daemon=True).start()
        yield [one.getsockname()[:2] for one in listeners]
    finally:
        for one in listeners:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # Wakes its thread.
            one.close()


def _say(listener: socket.socket, token: bytes) -> None:
    with suppress(OSError):  # It was closed.
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(token)


def _check(found: dict[str, Any]) -> None:
    host = found["host"]
    own = platform.python_version_tuple()[:2]
    if tuple(found["python"].split(".")[:2]) != own:
        raise LaunchError(
            f"The executor on host {host} has Python {found['python']}, and this client "
            f"{platform.python_version()}: functions travel between equal versions alone. Use "
            f"Python {'.'.join(found['python'].split('.')[:2])} here, or the client's there."
        )
    if found["missing"]:
        raise LaunchError(
            f"The Python of the executor on host {host} lacks {', '.join(found['missing'])}, "
            "which ranks need: install it on every host of the cluster, or send an environment "
            "along by addArtifacts(…, archive=True) and spark.sql.execution.pyspark.python."
        )
    if found["package"] != __version__:
        raise LaunchError(
            f"The executor on host {host} has sparkdl_runner {found['package']}, and this client "
            f"{__version__}: install the same version on both."
        )
