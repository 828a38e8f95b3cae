"""Finds the function that ``module:function`` names, or says what is missing."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from sparkdl_runner.base.nearest import did_you_mean, nearest
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import ConfigError


def find_function(text: str, what: str = "function") -> Callable[..., Any]:
    """Finds a function by ``package.module:function`` or ``path/to/file.py:function``.

    The working folder is searched first, as ``python -m`` does. A module that is not installed
    travels to the ranks by value, so that their hosts need not have it.

    Args:
        text: Where it is.
        what: What it should be, in words.

    Raises:
        ConfigError: The module or the function is not there, or importing it failed.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        near = ":".join(text.rsplit(".", 1)) if re.fullmatch(r"\w+(\.\w+)+", text) else text
        raise ConfigError(
            f"the {what} {text!r} is not of the form module:function or file.py:function"
            f"{nearest(text, [near] if near != text else [])}"
        )
    before = set(sys.modules)
    module = _from_file(place) if place.endswith(".py") else _from_name(place)
    for new in [sys.modules[module_name] for module_name in sys.modules.keys() - before] + [module]:
        if not _is_installed(new):
            cloudpickle.register_pickle_by_value(new)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            names = [
                attribute
                for attribute, value in vars(target).items()
                if callable(value) and getattr(value, "__module__", "") == module.__name__
            ]
            # What a library's package has, it has imported; that would be a long list.
            near = nearest(
                part, [attribute for attribute, value in vars(target).items() if callable(value)]
            )
            near = did_you_mean(part, names) if near == "." else near
            raise ConfigError(f"{place} has no {what} {name!r}{near}")
        target = getattr(target, part)
    if not callable(target):
        raise ConfigError(f"{text} is {target!r}, and no {what}.")
    return target  # type: ignore[no-any-return]


def _from_name(name: str) -> types.ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _failed(name, error) from error
        files = [path.stem for path in Path(folder).glob("*.py")]
        raise ConfigError(
            f"there is no module {name!r} in {folder} or on the path{nearest(name, files)}"
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _from_file(place: str) -> types.ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {place}.")
    # The name is unique: two files may be called alike, and none may hide a library.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{place} cannot be imported: give a file of Python, which ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The file can import what lies beside it, as a script can.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(place, error) from error
    return module


def _failed(place: str, error: Exception | SystemExit) -> ConfigError:
    if isinstance(error, SystemExit):
        return ConfigError(
            f"importing {place} asked the process to end ({error!r}): put what it does only when "
            'it is run as a script under if __name__ == "__main__":.'
        )
    reason = first_line(error)
    return ConfigError(
        f"importing {place} failed with {type(error).__name__}: {reason.rstrip('.')}; run "
        f"python {place if place.endswith('.py') else f'-m {place}'} for the whole traceback."
    )


def _is_installed(module: types.ModuleType) -> bool:
    """Whether other hosts, which have the same installation, can import it by its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    if module.__name__.partition(".")[0] == __package__.partition(".")[0]:
        return True
    if not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts):
        return True  # Also of the system, the user, or the environment that this one extends.
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return any(Path(file).is_relative_to(folder) for folder in folders)
