"""The cluster of Databricks, where one runs."""

from __future__ import annotations

import os
from collections.abc import Mapping


def on_databricks() -> bool:
    """Whether this process runs on a cluster of Databricks.

    There, the Spark session is not ours to stop, and a host is one cluster's alone.
    """
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def is_serverless(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether that is serverless compute, as AI Runtime is: Spark is elsewhere, and no Java here.

    There the version is that of the client, such as ``client.5.7``.
    """
    return environment.get("DATABRICKS_RUNTIME_VERSION", "").startswith("client.")
