"""What happens to a training, as lines of JSON for programs: see docs/tracking.md, For programs."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import first_line, tell
from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.performance import Counts, samples_per_second

STANDARD_OUTPUT = "-"


class Events(Reports):
    """Writes an event a line; the training goes on where that fails.

    Args:
        put: Takes each line, and keeps nothing of one that it cannot write.
        redact: Takes secrets out of texts.
        now: The clock.
    """

    def __init__(
        self,
        put: Callable[[str], object],
        redact: Callable[[str], str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._put, self._redact, self._now = put, redact, now
        self._lock = threading.Lock()
        self._has_failed = False
        self._attempt = 0
        self._counts: dict[int, Counts] = {}
        self._step: int | None = None
        self._checkpoint_step: int | None = None

    def write(self, event: str, **fields: Any) -> None:
        """Writes one event, with the time and those fields that are known."""
        known = {name: value for name, value in fields.items() if value is not None}
        line = {"event": event, "time": round(self._now(), 3), **known}
        with self._lock:
            if self._has_failed:
                return
            try:
                self._put(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            except (OSError, ValueError) as error:
                self._has_failed = True
                tell(f"no more events are written, and the training goes on: {error}.")

    def begin_attempt(self, attempt: int) -> None:
        """See ``Reports.begin_attempt``."""
        self._attempt, self._counts, self._step = attempt, {}, None
        self.write("attempt", attempt=attempt)

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """See ``Reports.end_attempt``."""
        if error is not None:
            self.write(
                "fault",
                attempt=self._attempt,
                error=type(error).__name__,
                message=self._redact(first_line(error)),
                rank=getattr(error, "rank", None),
                host=getattr(error, "host", None),
            )
        elif growth:
            self.write("growth", attempt=self._attempt, message=growth)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self._counts[world.rank] = Counts.of(report)
        if world.rank != 0:
            return
        saved = report["facts"].get("checkpoint_step")
        if saved is not None and saved != self._checkpoint_step:
            self._checkpoint_step = saved
            self.write("checkpoint", step=saved, url=report["facts"].get("checkpoint"))
        if report["step"] is not None and report["step"] != self._step:
            self._step = report["step"]
            self.write(
                "progress",
                attempt=world.attempt,
                step=report["step"],
                total_steps=report["total_steps"],
                epoch=report["epoch"],
                samples_per_second=samples_per_second(self._counts.values()),
            )

    def logged(self, world: World, entries: list[Entry]) -> None:
        """See ``Reports.logged``."""
        for kind, name, value, *rest in entries:
            if kind == "metric":
                number = value if math.isfinite(value) else str(value)
                self.write("metric", name=self._redact(name), value=number, step=rest[1])

    def preflight(self, report: dict[str, Any]) -> None:
        """See ``Reports.preflight``."""
        self.write("preflight", **report)

    def slow_ranks(self, text: str) -> None:
        """See ``Reports.slow_ranks``."""
        self.write("slow_ranks", message=text)


@contextmanager
def events_to(
    target: str | None, redact: Redactor, started: dict[str, Any]
) -> Iterator[list[Reports]]:
    """Who writes events, from the run's start to its end; nobody if that is not wanted.

    Args:
        target: A path, to whose file the events are added; ``-`` for standard output.
        redact: Takes secrets out of texts.
        started: The fields of the first event.

    Raises:
        LaunchError: The file cannot be written.
    """
    if target is None:
        yield []
        return
    with ExitStack() as stack:
        put: Callable[[str], object] = _print
        if target != STANDARD_OUTPUT:
            try:
                # Without a buffer, since that would be written again when the file is closed.
                file = stack.enter_context(open(target, "ab", buffering=0))
                put = lambda line: file.write(line.encode())  # noqa: E731 - of this file
            except OSError as error:
                raise LaunchError(
                    f"RunConfig.events is {target!r}, and no file can be written there "
                    f"({error.strerror}): name one in a folder that exists, or '-'."
                ) from error
        events = Events(put, redact)
        events.write("started", **started)
        began, status = time.monotonic(), "finished"
        try:
            yield [events]
        except BaseException as error:
            is_killed = isinstance(error, KeyboardInterrupt | RunCancelledError)
            status = "killed" if is_killed else "failed"
            raise
        finally:
            events.write("ended", status=status, seconds=round(time.monotonic() - began, 3))


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
