"""The environment that a worker starts with, and what of it is the driver's."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from sparkdl_runner.redaction import is_secret_name

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
# What no pattern copies: each host has its own, or modules travel by another way.
_HOSTS_OWN = (*SPARK_SECRETS, "CUDA_VISIBLE_DEVICES", "PYTHONHOME", "PYTHONPATH")

# Of what a backend sets, the defaults: what a person has set for a rank stands.
_DEFAULTS = ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
# A person may ask for more patience than ours. With less, a library would give up first, and blame
# the rank that waited.
_AT_LEAST = ("HOROVOD_GLOO_TIMEOUT_SECONDS",)


# In a worker's environment: folders to put first on its search path once Python has started.
LATER_PATH = "SPARKDL_RUNNER_LATER_PATH"


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
        if name not in _HOSTS_OWN
        and any(fnmatchcase(name, pattern) for pattern in patterns)
        # Who wants a secret to travel says so.
        and not (is_default and is_secret_name(name))
    }
    return copied | dict(given)


def driver_search_path() -> list[str]:
    """Where the driver finds modules, and where what it starts would."""
    paths = [*sys.path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return list(dict.fromkeys(os.path.abspath(path) if path else os.getcwd() for path in paths))


def worker_environment(
    threads: int, *, variables: Mapping[str, str], overrule: bool = False
) -> dict[str, str]:
    """The environment that a worker starts with: this process's, made fit for it.

    Args:
        threads: The CPU threads that the rank may use, unless OMP_NUM_THREADS says otherwise.
        variables: The driver's, which come before this process's own.
        overrule: Whether this process's OMP_NUM_THREADS is no person's choice, and means nothing.
    """
    environment = {name: value for name, value in os.environ.items() if name not in SPARK_SECRETS}
    if overrule or "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment |= variables
    ahead = extra_search_path(sys.path)
    hiding = [path for path in ahead if _hides_standard_modules(path)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in ahead if path not in hiding)
    environment[LATER_PATH] = os.pathsep.join(hiding)
    return environment


def complete_search_path() -> None:
    """Adds, in a worker that has started, what would have kept Python from starting.

    A script's folder counts for Python, too, only once it has started: a ``types.py`` there does no
    harm then.
    """
    later = os.environ.pop(LATER_PATH, "")
    sys.path[:0] = [path for path in later.split(os.pathsep) if path]


def search_path_for_children(added: Sequence[str]) -> str:
    """The ``PYTHONPATH`` by which what a worker starts finds the same modules.

    Args:
        added: What was added to the worker's own path.
    """
    found = dict.fromkeys([*extra_search_path(sys.path), *extra_search_path(added)])
    return os.pathsep.join(path for path in found if not _hides_standard_modules(path))


def _hides_standard_modules(folder: str) -> bool:
    """Whether a folder has modules named like those of Python's own that a process imports."""
    try:
        names = os.listdir(folder)
    except OSError:  # An archive.
        return False
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    return any(name in sys.modules for name in modules & sys.stdlib_module_names)


def beside_own(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """What to set of a backend's variables in a process that has some of its own.

    Args:
        environment: What the backend needs.
        own: The variables that the process has, its user's among them.
    """
    settled = dict(environment)
    for name in settled.keys() & own.keys():
        if name in _DEFAULTS or (name in _AT_LEAST and _number(own[name]) > float(settled[name])):
            settled[name] = own[name]
    return settled


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def extra_search_path(paths: Iterable[str]) -> list[str]:
    """Of the places of modules, those beyond the interpreter's own: py-files, archives.

    The interpreter's own folders stay out: the variable reaches whatever the function starts,
    which may be another Python. So does what comes behind them: ahead of them it would hide the
    interpreter's own packages, of which it may hold other versions. The worker finds what ``.pth``
    files name, and is told the rest; but this package it needs before it can be told.
    """
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    full = [os.path.abspath(path) if path else os.getcwd() for path in paths]
    packages = sysconfig.get_path("purelib")
    ahead = full[: full.index(packages)] if packages in full else full
    home = str(Path(__file__).parents[1])
    if home in full and home not in ahead and home not in _named_by_pth_files(packages):
        ahead.append(home)
    return [
        path
        for path in ahead
        if not path.startswith(own)
        and not os.path.basename(path).startswith("python3")
        and os.path.exists(path)
    ]


def _named_by_pth_files(packages: str) -> set[str]:
    """The folders that any interpreter adds to its search path when it starts."""
    lines = [
        line.strip()
        for file in Path(packages).glob("*.pth")
        for line in file.read_text(errors="replace").splitlines()
    ]
    return {os.path.join(packages, line) for line in lines if not line.startswith(("import", "#"))}
