"""Gives the channel's tests long timeouts, so that a busy machine fails none of them."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.agent import log_client
from sparkdl_runner.launch.driver import log_server

# How long to wait for what must come; nothing takes so long, even on a busy machine.
PATIENCE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _is_patient_and_connects_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (log_client, ("CONNECT_SECONDS", "FLUSH_SECONDS", "ANSWER_SECONDS")),
        (log_server, ("HELLO_SECONDS", "FLUSH_SECONDS", "STACKS_SECONDS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, PATIENCE_SECONDS)
    monkeypatch.setattr(log_client, "RECONNECT_SECONDS", 0.02)
