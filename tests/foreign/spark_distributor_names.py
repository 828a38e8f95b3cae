"""A plugin of pytest for Spark's own tests of TorchDistributor.

Where FOREIGN_DISTRIBUTOR is set, they get this package's class.
"""

from __future__ import annotations

import os

import pytest

from sparkdl_runner import RunConfig, TorchDistributor

# They name files from there, and import packages from the folders of PYTHONPATH.
folders = os.environ["PYTHONPATH"].split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)
os.chdir(os.environ["SPARK_SOURCE"])


class Distributor(TorchDistributor):
    """Without an MLflow run, which Spark's class does not make either."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, run_config=RunConfig(tracking=False), **kwargs)  # type: ignore[arg-type]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts this package's class where the tests find Spark's."""
    if os.environ.get("FOREIGN_DISTRIBUTOR"):
        for module in {item.getparent(pytest.Module) for item in items}:
            assert module is not None
            module.obj.TorchDistributor = Distributor
