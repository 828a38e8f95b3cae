"""The launcher's checks of a Spark session before it takes a slot; the doctor's too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark import allocation
from sparkdl_runner.launch.driver.spark.allocation import Settings
from sparkdl_runner.launch.driver.spark.context import is_single_host, settings_of
from sparkdl_runner.launch.driver.spark.task_shape import task_shape

if TYPE_CHECKING:
    from pyspark import SparkContext

ENCRYPTION_SETTINGS = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
)
# Of Spark 4.1 and later.
KILL_IDLE = "spark.python.worker.killOnIdleTimeout"
IDLE_SECONDS = "spark.python.worker.idleTimeoutSeconds"


def check(context: SparkContext, backend: Backend, config: RunConfig) -> None:
    """Raises the first of ``refusals``, if there is one."""
    for _, refusal in refusals(context, backend, config):
        if refusal is not None:
            raise refusal


def refusals(
    context: SparkContext, backend: Backend, config: RunConfig
) -> Iterator[tuple[str, LaunchError | None]]:
    """Yields each check's name, and why the launcher refuses the session by it, or None."""
    yield from _raised(settings_of(context).get, backend, config, is_single_host(context))
    try:
        task_shape(context, config, num_proc=0)
        yield "gpus", None
    except LaunchError as error:
        yield "gpus", error


def check_settings(
    settings: Settings, backend: Backend, config: RunConfig, *, single_host: bool
) -> None:
    """Raises the first refusal that the settings alone give reason for.

    Args:
        settings: The application's.
        backend: The run's.
        config: The same.
        single_host: Whether all tasks run on the driver's host.
    """
    for _, refusal in _raised(settings, backend, config, single_host):
        if refusal is not None:
            raise refusal


def encryption_asked_for(settings: Settings) -> list[str]:
    """The settings by which Spark's network is to be encrypted."""
    return [name for name in ENCRYPTION_SETTINGS if _is_on(settings, name)]


def _raised(
    settings: Settings, backend: Backend, config: RunConfig, single_host: bool
) -> Iterator[tuple[str, LaunchError | None]]:
    for name, pass_or_raise in _CHECKS.items():
        try:
            pass_or_raise(settings, backend, config, single_host)
            yield name, None
        except LaunchError as error:
            yield name, error


def _check_backend(
    settings: Settings, backend: Backend, config: RunConfig, single_host: bool
) -> None:
    """Looks for the backend where this Python is also the ranks'; elsewhere each agent looks."""
    if single_host:
        backend.check_installed()


def _check_encryption(
    settings: Settings, backend: Backend, config: RunConfig, single_host: bool
) -> None:
    """Refuses to send gradients in the clear if Spark is set to encrypt."""
    if config.allow_unencrypted or single_host:
        return  # What stays on one host crosses no network.
    asked = encryption_asked_for(settings)
    if asked:
        raise LaunchError(
            f"{asked[0]} is true, so this cluster's network must not see data in the clear, and "
            f"the {backend.name} backend sends gradients and weights unencrypted between hosts. "
            "Run on one host, put the hosts into a network that encrypts by itself (WireGuard, "
            "IPsec, the cloud's own), or accept it with RunConfig(allow_unencrypted=True)."
        )


def _check_allocation(
    settings: Settings, backend: Backend, config: RunConfig, single_host: bool
) -> None:
    if config.gang == "barrier" and allocation.is_dynamic(settings):
        raise LaunchError(
            "spark.dynamicAllocation.enabled is true, with which clusters start no barrier stage: "
            "set it to false and give the cluster a fixed size (spark.executor.instances), or use "
            "RunConfig(gang='tasks')."
        )


def _check_idle_timeout(
    settings: Settings, backend: Backend, config: RunConfig, single_host: bool
) -> None:
    """Refuses settings by which Spark kills an agent, which sends nothing until its rank ends."""
    seconds = (settings(IDLE_SECONDS) or "").strip()
    if _is_on(settings, KILL_IDLE) and seconds.strip("0s "):
        raise LaunchError(
            f"{KILL_IDLE} is true, and {IDLE_SECONDS} is {seconds}: Spark would kill each rank's "
            "task after that time, since a task sends Spark nothing until its rank has ended. Set "
            f"{KILL_IDLE} to false, or {IDLE_SECONDS} to 0, before the session starts."
        )


def _is_on(settings: Settings, name: str) -> bool:
    return (settings(name) or "").lower() == "true"


_CHECKS: dict[str, Callable[[Settings, Backend, RunConfig, bool], None]] = {
    "backend": _check_backend,
    "encryption": _check_encryption,
    "allocation": _check_allocation,
    "idle_timeout": _check_idle_timeout,
}
