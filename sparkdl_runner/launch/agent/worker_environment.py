"""The environment that a worker starts with, and what of it is the driver's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from sparkdl_runner.base.redaction import is_secret_name
from sparkdl_runner.launch.worker.driver_folders import own_files
from sparkdl_runner.launch.worker.search_path import (
    LATER_PATH,
    ahead_of_packages,
    extra_search_path,
    hides_standard_modules,
)

__all__ = ["driver_search_path", "driver_variables", "own_files", "worker_environment"]

# Spark's secrets in its Python processes' environment; user code has no business with them.
SPARK_SECRETS = (
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "_SPARK_AUTH_SECRET",
)

# The driver's variables that ranks get by default: settings of communication and of computing.
COPIED = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "GLOO_*",
    "HOROVOD_*",
    "NCCL_*",
    "PYTORCH_*",
    "TORCH_CPP_*",
    "TORCH_DISTRIBUTED_*",
    "TORCH_LOGS",
    "TORCH_NCCL_*",
    "TORCH_SHOW_*",
)
# Never copied by a pattern: each host has its own, and modules are sent in another way.
HOSTS_OWN = (*SPARK_SECRETS, "CUDA_VISIBLE_DEVICES", "PYTHONHOME", "PYTHONPATH")


def driver_variables(asked: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """The variables that the driver gives to its ranks.

    Args:
        asked: See ``RunConfig.environment``.
    """
    given: Mapping[str, str] = asked if isinstance(asked, Mapping) else {}
    patterns = COPIED if asked is None or isinstance(asked, Mapping) else asked
    is_default = patterns is COPIED
    copied = {
        name: value
        for name, value in os.environ.items()
        if name not in HOSTS_OWN
        and any(fnmatchcase(name, pattern) for pattern in patterns)
        # A secret is copied only if the user asks for it.
        and not (is_default and is_secret_name(name))
    }
    return copied | dict(given)


def driver_search_path() -> list[str]:
    """The folders of the driver's ``sys.path`` and ``PYTHONPATH``, as absolute paths.

    Those of ``PYTHONPATH`` come before installed packages, as in a process that the driver starts.
    """
    ahead = ahead_of_packages(sys.path)
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [*ahead, *added, *sys.path[len(ahead) :]]
    return list(dict.fromkeys(os.path.abspath(path) if path else os.getcwd() for path in paths))


def worker_environment(
    threads: int, *, variables: Mapping[str, str], overrule: bool = False
) -> dict[str, str]:
    """The environment that a worker starts with: this process's without Spark's secrets.

    Args:
        threads: The CPU threads that the rank may use, unless OMP_NUM_THREADS says otherwise.
        variables: The driver's, which come before this process's own.
        overrule: Whether to replace this process's OMP_NUM_THREADS, which no user set.
    """
    environment = {name: value for name, value in os.environ.items() if name not in SPARK_SECRETS}
    if overrule or "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment |= variables
    ahead = extra_search_path(sys.path)
    hiding = [path for path in ahead if hides_standard_modules(path)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in ahead if path not in hiding)
    environment[LATER_PATH] = os.pathsep.join(hiding)
    return environment
