"""The notebook as the source of a run, where MLflow itself names only the kernel's launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sparkdl_runner.base.notebook import ipython_shell

SOURCE_TAG, SOURCE_TYPE_TAG = "mlflow.source.name", "mlflow.source.type"
_LAUNCHER = "ipykernel_launcher.py"


def notebook_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of the notebook that this process runs; none where MLflow's own are as good.

    Args:
        tags: MLflow's own. Recent versions name the notebook, and Databricks' always do.
    """
    if os.path.basename(tags.get(SOURCE_TAG, "")) != _LAUNCHER:
        return {}
    of_editor = getattr(ipython_shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    # Jupyter's servers say it to their kernels.
    path = of_editor or os.environ.get("JPY_SESSION_NAME")
    named = {SOURCE_TAG: os.path.basename(path)} if path else {}
    return {SOURCE_TYPE_TAG: "NOTEBOOK", **named}
