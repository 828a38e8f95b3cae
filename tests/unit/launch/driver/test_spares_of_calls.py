"""Calls that leave spare workers, and calls that leave none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.spares import SPARE_SECONDS, spare_seconds


@pytest.mark.parametrize(
    ("place", "seconds"),
    [("script", 0.0), ("prompt", SPARE_SECONDS), ("databricks", SPARE_SECONDS), ("cell", 60.0)],
)
def test_only_where_a_person_is_at_work_unless_it_is_said(
    monkeypatch: pytest.MonkeyPatch, place: str, seconds: float
) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delitem(sys.modules, "dbruntime", raising=False)
    shell = SimpleNamespace(get_ipython=lambda: object() if place == "cell" else None)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    if place == "prompt":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    if place == "databricks":
        monkeypatch.setitem(sys.modules, "dbruntime", SimpleNamespace())
    assert spare_seconds(RunConfig()) == seconds
    assert spare_seconds(RunConfig(spare_seconds=7)) == 7
    assert spare_seconds(RunConfig(spare_seconds=0)) == 0
