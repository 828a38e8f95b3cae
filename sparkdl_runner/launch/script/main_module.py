"""Runs a file or a module as ``__main__``, as ``python`` and ``python -m`` do.

``runpy`` would put the former ``__main__`` back at the end, when threads and exit handlers of the
script still run, and names a script by a path of its own.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any


def run_file(path: str) -> None:
    """Runs a Python file as ``__main__``.

    Args:
        path: Its absolute path.
    """
    loader = SourceFileLoader("__main__", path)
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    _run(
        code,
        __file__=path,
        __cached__=None,
        __loader__=loader,
        __package__=None,
        __spec__=None,
    )


def run_module(name: str) -> None:
    """Runs a module, or a package's ``__main__``, as ``__main__``; the first argument is its path.

    Raises:
        ImportError: It is not there, or is no Python.
    """
    spec = _spec_of(name)
    if spec.submodule_search_locations is not None:
        try:
            spec = _spec_of(f"{name}.__main__")
        except ImportError as error:
            raise ImportError(f"{error}; {name!r} is a package, and cannot be run") from None
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None
    if code is None:
        raise ImportError(f"{name!r} holds no Python code that could be run")
    sys.argv[0] = spec.origin or name
    _run(
        code,
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=loader,
        __package__=spec.parent,
        __spec__=spec,
    )


def _spec_of(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


def _run(code: types.CodeType, **names: Any) -> None:
    main = types.ModuleType("__main__")
    vars(main).update(names)
    if "__annotations__" in vars(sys.modules["__main__"]):  # Up to Python 3.13 a script has it.
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    exec(code, vars(main))  # noqa: S102 - it is what Python does with a script
