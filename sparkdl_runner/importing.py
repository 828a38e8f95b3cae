"""Imports: large libraries without looking for garbage, and modules that are to be changed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any


@contextmanager
def without_collecting() -> Iterator[None]:
    """Turns garbage collection off for an import, where it is on.

    An import makes hundreds of thousands of objects and no garbage: Python would look through them
    again and again, for a tenth of the time of torch and a quarter of MLflow's.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def when_imported(module: str, change: Callable[[ModuleType], None]) -> None:
    """Changes a module of Python source once it is imported, or at once where it is already.

    Importing it stays as free as it was.
    """
    if module in sys.modules:
        change(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, change))


class _Finder(MetaPathFinder):
    """Finds one module as ever, and has it changed when it is loaded."""

    def __init__(self, module: str, change: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._change = change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.change = self._change
        return spec


class _Loader(SourceFileLoader):
    change: Callable[[ModuleType], None]

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self.change(module)
