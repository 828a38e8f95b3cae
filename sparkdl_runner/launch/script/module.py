"""Finds a module on the driver that is to run as a script, without importing it."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import sysconfig
from pathlib import Path

from sparkdl_runner.base.nearest import nearest
from sparkdl_runner.errors import LaunchError


def find_module(name: str) -> tuple[str, str]:
    """Finds a module as ``python -m`` does: in the working folder, then on the search path.

    Importing its packages might take seconds, or change this process; so only files are looked at.

    Returns:
        The folder in which its first package lies, "" where every host has that installed; and the
        file to run, "" where that is nothing of Python source.

    Raises:
        LaunchError: There is none.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        hint = name.removesuffix(".py").strip("./").replace("/", ".")
        raise LaunchError(
            f"{name!r} is no name of a module: give {hint!r}, or leave module (-m) out for a file."
        )
    parts = name.split(".")
    path = [os.getcwd(), *sys.path]
    spec = None
    places: list[str] | None = path
    for part in parts:
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    if spec is None:
        files = [script.stem for script in Path.cwd().glob("*.py")]
        raise LaunchError(
            f"there is no module {name} in {os.getcwd()} or on the path{nearest(name, files)}"
        )
    top = importlib.machinery.PathFinder.find_spec(parts[0], path)
    if spec.submodule_search_locations is not None:
        spec = importlib.machinery.PathFinder.find_spec("__main__", places)
        if spec is None:
            raise LaunchError(
                f"{name} is a package without a __main__, and cannot be run: give the module in it."
            )
    file = spec.origin if spec.origin and spec.origin.endswith(".py") else ""
    return _root_of(top), file


def _root_of(top: importlib.machinery.ModuleSpec | None) -> str:
    places = [] if top is None else list(top.submodule_search_locations or ())
    if top is None or not (places or top.origin):
        return ""
    root = os.path.dirname(os.path.realpath(places[0] if places else str(top.origin)))
    return "" if is_installed(root) else root


def is_installed(folder: str) -> bool:
    """Whether other hosts, which have the same installation, have what is in a folder."""
    if not {"site-packages", "dist-packages"}.isdisjoint(Path(folder).parts):
        return True  # Also of the system, the user, or the environment that this one extends.
    known = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return any(Path(folder).is_relative_to(root) for root in known)
