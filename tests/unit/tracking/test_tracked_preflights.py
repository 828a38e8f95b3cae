"""What a run keeps of its preflight, and what later runs of its experiment read of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner.tracking.report.run_summary import PREFLIGHT_TAG, RATES_TAG
from sparkdl_runner.tracking.run.tracked_run import TrackedRun
from sparkdl_runner.tracking.settings import Tracking


@pytest.fixture
def store(tmp_path: Path, new_store: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # Spools are below it.
    return new_store(tmp_path)


def test_later_runs_of_an_experiment_know_what_hosts_reached(store: str) -> None:
    first = TrackedRun.open(Tracking(tracking_uri=store, report=False))
    assert first.earlier_rates() == []
    first.preflight({"lines": ["preflight: one", "preflight: two"], "rates": {"a": 9e9}})
    first.close(None)
    tags: dict[str, Any] = first.client.get_run(first.run_id).data.tags
    assert tags[PREFLIGHT_TAG] == "preflight: one\npreflight: two"
    second = TrackedRun.open(Tracking(tracking_uri=store, report=False))
    # A tag that somebody has changed is of no use, and no obstacle.
    assert second.earlier_rates() == [{"a": 9e9}]
    second.client.set_tag(first.run_id, RATES_TAG, "{broken")
    assert second.earlier_rates() == []
    # Text that is too long for a tag is cut, and too many rates are left out.
    second.preflight({"lines": ["x" * 9000], "rates": {str(host): 1e9 for host in range(999)}})
    second.close(None)
    tags = second.client.get_run(second.run_id).data.tags
    assert len(tags[PREFLIGHT_TAG]) == 5000
    assert RATES_TAG not in tags
