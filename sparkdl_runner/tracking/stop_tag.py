"""A tag of the MLflow run by which a person asks the training to end.

Who may write to the run may ask: the right to end it is the right to write there, which the
tracking server checks. The driver only reads the tag, and deletes it once it has acted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sparkdl_runner.tracking.run.server import REQUEST_SECONDS, why_unreachable
from sparkdl_runner.tracking.run.server_calls import problem_within

STOP_TAG = "sparkdl_runner.stop"
LOOK_SECONDS = 10.0
_MOST_CHARACTERS = 40


class StopTag:
    """Looks for the tag in a thread, while used as a context manager.

    What is there already is of an earlier attempt, and is deleted.

    Args:
        client: An ``MlflowClient``.
        run_id: The run.
        stop: Called once, with the reason.
    """

    def __init__(self, client: Any, run_id: str, stop: Callable[[str], None]) -> None:
        self._client = client
        self._run_id = run_id
        self._stop = stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-stop-tag", daemon=True)

    def __enter__(self) -> StopTag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # A server that hangs must not keep the training's end; the thread only reads.
        self._thread.join(1.0)

    def _run(self) -> None:
        self._take()
        while not self._over.wait(LOOK_SECONDS):
            reason = self._take()
            if reason:
                self._stop(f"the run's tag {STOP_TAG} asks for it: {reason[:_MOST_CHARACTERS]}")
                return

    def _take(self) -> str:
        """The tag's value, which is deleted; empty if there is none, or the server is away."""
        values: list[str] = []

        def look() -> None:
            value = self._client.get_run(self._run_id).data.tags.get(STOP_TAG)
            if value:
                self._client.delete_tag(self._run_id, STOP_TAG)
                values.append(str(value))

        # MLflow's client asks a server that is away again and again, for minutes.
        if why_unreachable(self._client.tracking_uri) is None:
            problem_within(look, REQUEST_SECONDS)
        return values[0] if values else ""
