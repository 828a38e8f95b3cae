"""What an agent tells of its worker while that has not ended yet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.agent.supervision import Report, _Supervision
from sparkdl_runner.wire.messages import Failed, Raised, Returned

RAISED = Raised(exception="ValueError", message="bad")


@pytest.mark.parametrize(
    ("end", "was_stopped", "told", "kept"),
    [
        (RAISED, False, [Failed("an outcome")], True),
        (Returned(), False, [], True),
        (Returned(), True, [], True),
        # What is raised after a stop is raised because of it.
        (RAISED, True, [], False),
    ],
)
def test_a_failure_is_told_at_once_and_a_return_at_the_end(end, was_stopped, told, kept):
    heard = []
    supervision = SimpleNamespace(
        _was_stopped=was_stopped,
        _report=None,
        _tell=heard.append,
        _outcome=lambda: "an outcome",
    )
    _Supervision._note(supervision, Report(end, b""))
    assert heard == told
    assert (supervision._report is not None) == kept
