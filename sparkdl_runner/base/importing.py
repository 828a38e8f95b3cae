"""Imports: large libraries without looking for garbage, and modules that are to be changed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
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
    """Changes a module once it is imported, or at once where it is already.

    Importing it stays as free as it was.
    """
    if module in sys.modules:
        change(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, change))


class _Finder(MetaPathFinder):
    """Finds one module as all others would, and has it changed when it is loaded.

    It stays until then: libraries look whether a module is there, by ``importlib.util.find_spec``,
    long before they import it.
    """

    def __init__(self, module: str, change: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._change = change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Adds the change to the module's loading."""
        if fullname != self._module:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then_change(module: ModuleType) -> None:
            with without_collecting():
                execute(module)
            # An archive's loader is that of its other modules too.
            if module.__name__ == self._module and self in sys.meta_path:
                sys.meta_path.remove(self)
                self._change(module)

        spec.loader.exec_module = execute_then_change  # type: ignore[method-assign]
        return spec

    def _found_by_others(self, fullname: str, path: Any, target: Any) -> ModuleSpec | None:
        """Asks the finders after this one: those before it have been asked, and found nothing."""
        finders = list(sys.meta_path)
        later = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in later:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec and find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None
