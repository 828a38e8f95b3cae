"""Modules that are changed when they are imported; no garbage is looked for meanwhile."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sparkdl_runner.base.importing import when_imported, without_collecting


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
    """At each change of ``large_library``, whether garbage is looked for."""
    (tmp_path / "large_library.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[bool] = []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    when_imported("large_library", lambda _: told.append(gc.isenabled()))
    yield told
    sys.modules.pop("large_library", None)


def test_a_module_that_is_to_be_changed_is_imported_without_collecting(told: list[bool]) -> None:
    assert not importlib.import_module("large_library").collects
    assert told == [True]


def test_a_library_may_look_whether_it_is_there_before_it_imports_it(told: list[bool]) -> None:
    finders = len(sys.meta_path)
    for _ in range(2):
        assert importlib.util.find_spec("large_library") is not None
    assert told == []
    importlib.import_module("large_library")
    assert told == [True]
    assert len(sys.meta_path) == finders - 1
    importlib.reload(sys.modules["large_library"])
    assert told == [True]


def test_a_module_that_is_there_is_changed_at_once() -> None:
    told: list[object] = []
    when_imported("gc", told.append)
    assert told == [gc]


def test_a_module_may_be_changed_by_several(told: list[bool]) -> None:
    """In the order in which they asked for it."""
    order: list[str] = []
    for name in ("first", "second"):
        when_imported("large_library", lambda _, name=name: order.append(name))  # type: ignore[misc]
    assert importlib.util.find_spec("large_library") is not None
    importlib.import_module("large_library")
    assert len(told) == 1
    assert order == ["first", "second"]
