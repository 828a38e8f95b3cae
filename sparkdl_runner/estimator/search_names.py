"""What is common to the fits of one search: their names, and the MLflow run that they are below.

A fit is called by the values that differ, and the fold of its CrossValidator.

Spark tells an estimator neither. A search calls ``fitMultiple`` with all its maps of Params, on the
estimator or on the Pipeline around it. A Pipeline copies its stages in that call, and once more
with the map of each fit. So a copy looks for ``fitMultiple`` among its callers, and copies of the
copy keep what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pyspark.ml.param import Param
from pyspark.ml.tuning import CrossValidator

from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.training.description.described import told_apart


@dataclass(frozen=True, kw_only=True)
class SearchNames:
    """The names of all fits of one call of ``fitMultiple``."""

    maps: Sequence[Mapping[Param[Any], Any]]
    """Its maps of Params, one for each fit."""
    names: Sequence[RunName]
    """Of the same length. A text is empty where nothing tells a fit apart."""

    @classmethod
    def of_caller(cls, owner: str) -> SearchNames | None:
        """Looks for ``fitMultiple`` among the callers of this; None if none of them is one.

        Args:
            owner: The ``uid`` of the estimator, whose own Params need no prefix in a name.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "fitMultiple":
            frame = frame.f_back
        maps = None if frame is None else frame.f_locals.get("paramMaps")
        if frame is None or maps is None:
            return None
        texts = told_apart(
            [{_named(key, owner): param_map[key] for key in param_map} for param_map in maps]
        )
        fold = _fold(frame.f_back)
        if fold is not None:
            texts = [f"{text} (fold {fold})".lstrip() for text in texts]
        # MLflow's active run is one of a thread, and a search fits in threads of its own.
        active_run = getattr(sys.modules.get("mlflow"), "active_run", lambda: None)
        names = [RunName(text=text, is_numbered=not text, below=active_run()) for text in texts]
        return cls(maps=maps, names=names)

    def name_of(self, chosen: object) -> RunName | None:
        """The name of the fit with this map of Params; None if it is none of the search's."""
        pairs = zip(self.maps, self.names, strict=True)
        return next((name for param_map, name in pairs if param_map is chosen), None)


def _named(param: Param[Any], owner: str) -> str:
    """The name of a Param: ``epochs``, or that of another stage as ``HashingTF.numFeatures``."""
    return param.name if param.parent == owner else f"{param.parent.partition('_')[0]}.{param.name}"


def _fold(caller: FrameType | None) -> int | None:
    """The fold of the CrossValidator that makes its fits here, from 1 on; None in other searches.

    Its loop counts the folds in a variable. Where Spark renames it, names lack the fold.
    """
    loop = None if caller is None else caller.f_back
    if loop is None or not isinstance(loop.f_locals.get("self"), CrossValidator):
        return None
    counted = loop.f_locals.get("i")
    return counted + 1 if isinstance(counted, int) else None
