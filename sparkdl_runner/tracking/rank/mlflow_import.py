"""Meets MLflow in a rank when it is imported, and not before.

Importing it takes seconds, and many functions never do. From then on its tracking store, which
every call goes through, is rank 0's or that of the others.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence

from sparkdl_runner.importing import without_collecting
from sparkdl_runner.tracking.rank import other_ranks_calls
from sparkdl_runner.tracking.rank import rank_zero_calls as joining
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank_run import RankRun


def prepare(run: RankRun, recorder: Recorder) -> None:
    """Makes MLflow, once it is imported, speak to ``recorder``, or to nobody."""

    def meet() -> None:
        if run.rank == 0:
            joining.join(run, recorder)
        else:
            other_ranks_calls.stay_out(run)

    if "mlflow" in sys.modules:
        meet()
    else:
        sys.meta_path.insert(0, _OnImport("mlflow", meet))


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls something right after a module has been imported for the first time."""

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
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then(module: types.ModuleType) -> None:
            with without_collecting():
                execute(module)
            self._then()

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
