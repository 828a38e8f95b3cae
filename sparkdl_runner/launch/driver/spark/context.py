"""The running Spark application, or why there is none that could run ranks."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.wire import network

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext


OLDEST_SPARK = (3, 5)


def running_context() -> SparkContext | None:
    """Returns this process's SparkContext; None where it has none, or had one that has ended."""
    of_pyspark = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    # Not the active session, of which each thread has its own.
    context: SparkContext | None = getattr(of_pyspark, "_active_spark_context", None)
    return None if context is None or is_stopped(context) else context


def require_spark_context() -> SparkContext:
    """Returns the running application's SparkContext.

    Raises:
        LaunchError: There is none, or it is reached by Spark Connect only.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise LaunchError(
            "A positive number of ranks runs on Spark, and pyspark is not installed here: run "
            "pip install 'sparkdl-runner[spark]', or use a negative number to run on this host "
            "alone, without Spark."
        ) from None
    refuse_spark_connect()
    context = running_context()
    if context is None:
        raise LaunchError(
            "There is no Spark session: create one with SparkSession.builder.getOrCreate() before "
            "run(), or use a negative number to run on this host alone, without Spark."
        )
    check_version(context.version)
    return context


def settings_of(context: SparkContext) -> SparkConf:
    """The application's settings, to read.

    ``getConf()`` would copy them first, each by calls to the JVM of its own: some 5 ms.
    """
    settings: SparkConf = context._conf
    return settings


def refuse_spark_connect() -> None:
    """Refuses a session without a SparkContext, in which no rank could run.

    Raises:
        LaunchError: Spark is reached by Spark Connect.
    """
    if is_spark_connect():
        raise no_spark_connect("This session reaches Spark through Spark Connect")


def no_spark_connect(found: str) -> LaunchError:
    """The error where ``found`` says that Spark is reached through Spark Connect, and why."""
    return LaunchError(
        f"{found}, and what was called needs a classic session, with Spark's driver in this "
        "process: use one (on Databricks: dedicated access mode, not serverless or standard), or "
        "call DistributedRunner or a job, which run ranks through Spark Connect."
    )


def check_version(version: str) -> None:
    """Refuses a Spark that lacks what ranks need, such as tags to cancel one job by.

    Raises:
        LaunchError: It is older than 3.5.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_SPARK:
        raise LaunchError(
            f"This is Spark {version}, and ranks need Spark {OLDEST_SPARK[0]}.{OLDEST_SPARK[1]} or "
            "later (on Databricks: runtime 15.4 LTS or later). Use a newer cluster, or a negative "
            "number to run on this host alone."
        )


def is_stopped(context: SparkContext) -> bool:
    """Whether the application has ended: its session was stopped, or its JVM died."""
    return bool(end_of(context))


def end_of(context: SparkContext) -> str:
    """How the application has ended, to follow a colon; empty while it runs."""
    if context._jsc is None:
        return "its session was stopped"
    try:
        return "its session was stopped" if context._jsc.sc().isStopped() else ""
    except Exception:  # The JVM does not answer.
        return (
            "its JVM died, as the driver's does of a result larger than spark.driver.memory holds"
        )


def is_spark_connect() -> bool:
    """Whether this process reaches Spark through Spark Connect."""
    try:
        from pyspark.sql.utils import is_remote
    except ImportError:
        return False
    return bool(is_remote())


def folder_of_files() -> str:
    """Where this process's Spark keeps the files that were added to it; empty without a Spark."""
    if running_context() is None:
        return ""
    files = getattr(sys.modules.get("pyspark"), "SparkFiles", None)
    with suppress(Exception):  # Spark ends meanwhile.
        return "" if files is None else str(files.getRootDirectory())
    return ""


def is_single_host(context: SparkContext) -> bool:
    """Whether all tasks run in the driver's own process."""
    return re.fullmatch(r"local(\[.*\])?", context.master or "") is not None


def listen_on_driver(
    context: SparkContext,
    *,
    port_range: network.PortRange | None = None,
    interface: str | None = None,
) -> tuple[socket.socket, str]:
    """Opens the socket of the channel to the agents. Returns it, and its address for executors.

    It is bound to the one address by which executors reach the driver, also where Spark itself
    listens on all interfaces.

    Args:
        context: The application's context.
        port_range: See ``RunConfig``.
        interface: The same; passed over where the driver has none such.

    Raises:
        LaunchError: That is no address of this host, or none of its ports is free.
    """
    if is_single_host(context):
        return network.listen(network.LOOPBACK, port_range), network.LOOPBACK
    configuration = settings_of(context)
    host = (configuration.get("spark.driver.host") or network.LOOPBACK).strip("[]")
    bound = (configuration.get("spark.driver.bindAddress") or host).strip("[]")
    on_interface = network.address_on(interface) if interface is not None else None
    try:
        if on_interface is not None:
            address = announced = on_interface[0]
        else:
            address, announced = _reachable_address(context, host, network.resolve(bound))
        return network.listen(address, port_range), announced
    except OSError as error:
        raise LaunchError(
            f"The driver cannot listen on {bound} ({error}), which spark.driver.bindAddress or "
            "spark.driver.host names: set it to an address of this host that executors can reach."
        ) from error


def _reachable_address(context: SparkContext, host: str, bound: str) -> tuple[str, str]:
    """The address on which the driver listens, and the one that executors use.

    Args:
        context: The application's context.
        host: The driver's name, as executors know it.
        bound: The IP address that Spark binds there.
    """
    is_wildcard = ipaddress.ip_address(bound).is_unspecified
    own = network.resolve(host) if is_wildcard else bound
    is_own = not is_wildcard or network.interface_of(own) is not None
    if is_own and not network.is_loopback(own):
        return own, host
    # The driver's name leads to the loopback interface here, as /etc/hosts often has it, or under
    # address translation to no address of this host. The route to an executor says which is meant.
    for executor in _other_hosts(context, host):
        source = network.source_address(executor)
        if not network.is_loopback(source):
            return source, host if _is_elsewhere(host) else source
    return (own if is_own else network.source_address(own)), host


def _is_elsewhere(host: str) -> bool:
    """Whether a name leads to no address of this host: it is translated on the way."""
    address = network.resolve(host)
    return network.interface_of(address) is None and not network.is_loopback(address)


def _other_hosts(context: SparkContext, host: str) -> list[str]:
    """The addresses of the executors that have another name than the driver's."""
    addresses = []
    for executor in context._jsc.sc().statusTracker().getExecutorInfos():
        name = executor.host().strip("[]")
        if name != host:
            with suppress(OSError):
                addresses.append(network.resolve(name))
    return addresses
