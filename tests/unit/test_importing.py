"""A rank's MLflow is set up when it is imported; no garbage is looked for meanwhile."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sparkdl_runner.importing import without_collecting
from sparkdl_runner.tracking.rank.mlflow_import import _OnImport


@pytest.mark.parametrize("is_on", [True, False])
def test_collecting_is_afterwards_as_it_was(is_on: bool) -> None:
    try:
        if not is_on:
            gc.disable()
        with without_collecting():
            assert not gc.isenabled()
        with suppress(ImportError), without_collecting():
            raise ImportError
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What a finder of a rank was told: whether garbage is looked for, at each of its calls."""
    (tmp_path / "large_library.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[bool] = []
    finder = _OnImport("large_library", lambda: told.append(gc.isenabled()))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield told
    sys.modules.pop("large_library", None)


def test_a_rank_imports_mlflow_without_collecting(told: list[bool]) -> None:
    assert not importlib.import_module("large_library").collects
    assert told == [True]


def test_a_library_may_look_whether_mlflow_is_there_before_it_imports_it(told: list[bool]) -> None:
    for _ in range(2):
        assert importlib.util.find_spec("large_library") is not None
    assert told == []
    importlib.import_module("large_library")
    assert told == [True]
    assert not any(isinstance(finder, _OnImport) for finder in sys.meta_path)
