"""A worker's search path for modules, beyond that of its interpreter."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

_PACKAGES = ("site-packages", "dist-packages")
# In a worker's environment: folders to put first on its search path once Python has started.
LATER_PATH = "SPARKDL_RUNNER_LATER_PATH"


def complete_search_path() -> None:
    """Adds, in a worker that has started, folders that would have kept Python from starting.

    A ``types.py`` there would hide Python's own while it starts, and does no harm after that.
    """
    later = os.environ.pop(LATER_PATH, "")
    sys.path[:0] = [path for path in later.split(os.pathsep) if path]


def ahead_of_packages(paths: Iterable[str]) -> list[str]:
    """The part of an interpreter's search path that comes before its installed packages."""
    return list(takewhile(lambda path: os.path.basename(path) not in _PACKAGES, paths))


def search_path_for_children(added: Sequence[str], driver_path: Sequence[str]) -> str:
    """The ``PYTHONPATH`` by which what a worker starts finds the same modules.

    Args:
        added: What was added to the worker's own path.
        driver_path: The driver's. In PYTHONPATH folders come before installed packages, so of those
            that were added it gets only the ones that do so on the driver.
    """
    ahead = set(ahead_of_packages(driver_path))
    also = extra_search_path(path for path in added if path in ahead)
    paths = dict.fromkeys([*extra_search_path(sys.path), *also])
    return os.pathsep.join(path for path in paths if not hides_standard_modules(path))


def hides_standard_modules(folder: str) -> bool:
    """Whether a folder has modules named like those of Python's own that a process imports."""
    try:
        names = os.listdir(folder)
    except OSError:  # An archive.
        return False
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    return any(name in sys.modules for name in modules & sys.stdlib_module_names)


def extra_search_path(paths: Iterable[str]) -> list[str]:
    """The folders and archives of modules that are not the interpreter's own.

    The interpreter's own folders are left out: PYTHONPATH also reaches programs that the function
    starts, which may be another Python. Folders behind them are left out as well: in PYTHONPATH
    they would come first, and may hold other versions of the interpreter's packages. The envelope
    tells the worker of those; only this package it needs before that.
    """
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    full = [os.path.abspath(path) if path else os.getcwd() for path in paths]
    packages = sysconfig.get_path("purelib")
    ahead = full[: full.index(packages)] if packages in full else full
    home = str(Path(__file__).parents[3])
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
