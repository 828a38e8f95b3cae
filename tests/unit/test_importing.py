"""Garbage is not looked for while something large is imported, and is again afterwards."""

from __future__ import annotations

import gc
import importlib
import sys
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


def test_a_rank_imports_mlflow_without_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_library.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    met = []
    finder = _OnImport("large_library", lambda: met.append(gc.isenabled()))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    try:
        assert not importlib.import_module("large_library").collects
        assert met == [True]
    finally:
        sys.modules.pop("large_library", None)
