"""The environment that a worker starts with."""

from __future__ import annotations

import os
import sys
import sysconfig

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


def worker_environment(threads: int, *, overrule: bool = False) -> dict[str, str]:
    """The environment that a worker starts with: this process's, made fit for it.

    Args:
        threads: The CPU threads that the rank may use, unless OMP_NUM_THREADS says otherwise.
        overrule: Whether that variable is no person's choice, and means nothing here.
    """
    environment = {name: value for name, value in os.environ.items() if name not in SPARK_SECRETS}
    if overrule or "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment["PYTHONPATH"] = os.pathsep.join(_extra_search_path())
    return environment


def _extra_search_path() -> list[str]:
    """The modules that this process sees beyond the interpreter's own: py-files, archives.

    The interpreter's own folders stay out: the variable reaches whatever the function starts,
    which may be another Python. So does what comes behind them, as from ``.pth`` files: ahead of
    them it would hide the interpreter's own packages, of which it may hold other versions.
    """
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths = [os.path.abspath(path) if path else os.getcwd() for path in sys.path]
    packages = sysconfig.get_path("purelib")
    ahead = paths[: paths.index(packages)] if packages in paths else paths
    return [
        path
        for path in ahead
        if not path.startswith(own) and not os.path.basename(path).startswith("python3")
    ]
