"""The cluster of Databricks, where one runs."""

from __future__ import annotations

import os


def on_databricks() -> bool:
    """Whether this process runs on a cluster of Databricks.

    There, the Spark session is not ours to stop, and a host is one cluster's alone.
    """
    return "DATABRICKS_RUNTIME_VERSION" in os.environ
