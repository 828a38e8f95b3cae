"""What an agent tells of its worker while that has not ended yet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.agent.worker_process import WorkerProcess
from sparkdl_runner.wire.outcome import FAILED, RETURNED


@pytest.mark.parametrize(
    ("kind", "was_stopped", "told", "kept"),
    [
        (FAILED, False, ["an outcome"], True),
        (RETURNED, False, [], True),
        (RETURNED, True, [], True),
        # What is raised after a stop is raised because of it.
        (FAILED, True, [], False),
    ],
)
def test_a_failure_is_told_at_once_and_a_return_at_the_end(kind, was_stopped, told, kept):
    heard: list[str] = []
    worker = SimpleNamespace(
        _was_stopped=was_stopped,
        _report=None,
        _sink=SimpleNamespace(failed=heard.append),
        _outcome=lambda: "an outcome",
    )
    WorkerProcess._note(worker, "report", ({"kind": kind}, b""))
    assert heard == told
    assert (worker._report is not None) == kept
