"""A failed rank's outcome as JSON: without the pickled exception, and cut to a bearable size."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World

# In characters, of which each takes up to 12 bytes of JSON.
MAX_NAME = 200
MAX_MESSAGE = 16 * 1024
MAX_TRACEBACK = 32 * 1024
MAX_TAIL_LINE = 500


def to_report(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain values."""
    report = asdict(outcome)
    del report["payload"], report["notes"]
    return report | {
        "exception": outcome.exception[:MAX_NAME],
        "message": outcome.message[:MAX_MESSAGE],
        "traceback": outcome.traceback[-MAX_TRACEBACK:],
        "output_tail": [line[:MAX_TAIL_LINE] for line in outcome.output_tail],
        "log_path": outcome.log_path[:MAX_MESSAGE],
    }


def from_report(report: dict[str, Any]) -> Outcome:
    """Rebuilds what ``to_report`` made."""
    world, status = World.from_json(report["world"]), Status(report["status"])
    tuples = {name: tuple(report[name]) for name in ("output_tail", "preempted_ranks")}
    return Outcome(**{**report, **tuples, "world": world, "status": status})


class UnheardFailureError(Exception):
    """Raised by an agent whose rank has failed while the driver does not hear it.

    A failed task makes Spark end the other ranks, and its text reaches the driver: one line of
    JSON, from which the driver rebuilds the outcome.
    """

    @classmethod
    def of(cls, outcome: Outcome) -> UnheardFailureError:
        """Packs an outcome."""
        return cls(json.dumps(to_report(outcome)))

    @staticmethod
    def outcome(text: str) -> Outcome:
        """Unpacks the text of such an error."""
        return from_report(json.loads(text))
