"""The requirements of a logged network: packages, and modules that no package holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def requirements(network: torch.nn.Module | None = None) -> list[str]:
    """Packages that loading the model needs; of a pickled one those of its classes too."""
    import torch

    versions = {"torch": torch.__version__.partition("+")[0]}
    if network is not None:
        installed = metadata.packages_distributions()
        for module in _modules(network):
            for package in installed.get(module, ()):
                versions[package] = metadata.version(package)
    return [f"{name}=={version}" for name, version in versions.items()]


def own_modules(network: torch.nn.Module) -> list[str]:
    """The modules with the network's classes that no installed package holds."""
    installed = metadata.packages_distributions()
    # A pickle holds what is defined in the script or notebook itself.
    known = {*installed, *sys.stdlib_module_names, "__main__"}
    return [module for module in _modules(network) if module not in known]


def _modules(network: torch.nn.Module) -> list[str]:
    """The top-level modules that define the network's classes."""
    names = (type(part).__module__.partition(".")[0] for part in network.modules())
    return [name for name in dict.fromkeys(names) if name != "torch"]


@contextmanager
def without_package_lists() -> Iterator[None]:
    """Keeps MLflow from reading the file lists of all installed packages.

    That takes as long as all the rest, and serves requirements that have no metadata.
    """
    from mlflow.utils import requirements_utils

    known = getattr(requirements_utils, "_MODULES_TO_PACKAGES", {})
    if known is None:
        requirements_utils._MODULES_TO_PACKAGES = {}
    try:
        yield
    finally:
        if known is None:
            requirements_utils._MODULES_TO_PACKAGES = None
