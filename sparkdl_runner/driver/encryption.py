"""Refuses to send gradients in the clear over a network that Spark was told not to trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver.spark_context import is_single_host
from sparkdl_runner.errors import LaunchError

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTINGS = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
)


def check_encryption(context: SparkContext, backend: str, config: RunConfig) -> None:
    """Compares what Spark's settings ask for with what a backend offers: no encryption.

    Raises:
        LaunchError: They ask for encryption, and ``allow_unencrypted`` is not set.
    """
    if config.allow_unencrypted or is_single_host(context):
        return  # What stays on one host crosses no network.
    settings = context.getConf()
    asked = [name for name in SETTINGS if (settings.get(name) or "").lower() == "true"]
    if asked:
        raise LaunchError(
            f"{asked[0]} is true, so this cluster's network must not see data in the clear, and "
            f"the {backend} backend sends gradients and weights unencrypted between hosts. Run on "
            "one host, put the hosts into a network that encrypts by itself (WireGuard, IPsec, the "
            "cloud's own), or accept it with RunConfig(allow_unencrypted=True)."
        )
