"""Gives the tests of tracking long timeouts, so that a busy machine fails none of them."""

from __future__ import annotations

import pytest

from sparkdl_runner.tracking.rank import recorder
from sparkdl_runner.tracking.run import delivery, server

PATIENCE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOSE_SECONDS", PATIENCE_SECONDS)
    for name in ("END_SECONDS", "REQUEST_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(delivery, name, PATIENCE_SECONDS)
    for name in ("REQUEST_SECONDS", "_LEAST_SECONDS"):
        monkeypatch.setattr(server, name, PATIENCE_SECONDS)
