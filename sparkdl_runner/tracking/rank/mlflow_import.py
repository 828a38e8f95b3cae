"""Sets MLflow up in a rank when it is imported, and not before.

Importing it takes seconds, and many functions never do.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import cast

from sparkdl_runner.importing import without_collecting
from sparkdl_runner.tracking.rank import other_ranks, rank_zero
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank_run import RankRun


def prepare(run: RankRun, recorder: Recorder) -> None:
    """Sets MLflow up once it is imported: rank 0's calls go to ``recorder``."""

    def set_up() -> None:
        if run.rank == 0:
            rank_zero.set_up(run, recorder)
        else:
            other_ranks.set_up(run)

    if "mlflow" in sys.modules:
        set_up()
    else:
        sys.meta_path.insert(0, _OnImport("mlflow", set_up))


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls something right after a module has been imported for the first time.

    It stays until then: libraries look whether MLflow is there, by ``importlib.util.find_spec``,
    long before they import it.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module as everybody would, and adds the call to its loading."""
        if fullname != self._name:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then(module: types.ModuleType) -> None:
            with without_collecting():
                execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            if find_spec is not None and (spec := find_spec(fullname, path, target)) is not None:
                return cast(importlib.machinery.ModuleSpec, spec)
        return None
