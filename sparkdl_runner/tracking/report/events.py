"""What happens to a training, as lines of JSON for programs: see docs/tracking.md, For programs."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import first_line, tell
from sparkdl_runner.base.standard_output import for_programs
from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.cost import cost_of
from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.report.performance import Counts, samples_per_second

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.rank_reports import RankReports

STANDARD_OUTPUT = "-"


class Events(Reports):
    """Writes an event a line; the training goes on where that fails.

    Args:
        put: Takes each line, and keeps nothing of one that it cannot write.
        run: The run's name, for a reader of several.
        redact: Takes secrets out of texts.
        ranks: Collects their reports, for what the run cost.
        now: The clock.
    """

    def __init__(
        self,
        put: Callable[[str], object],
        run: str,
        redact: Callable[[str], str],
        ranks: RankReports,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._put, self._run, self._redact, self._now = put, run, redact, now
        self._lock = threading.Lock()
        self._has_failed = False
        self._attempt = 0
        self._counts: dict[int, Counts] = {}
        self._step: int | None = None
        self._checkpoint_step: int | None = None
        self._ranks, self._began_at = ranks, 0.0
        self.times: list[AttemptTime] = []

    def write(self, event: str, **fields: Any) -> None:
        """Writes one event, with the time and those fields that are known."""
        known = {name: value for name, value in fields.items() if value is not None}
        line = {"event": event, "time": round(self._now(), 3), "run": self._run, **known}
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
        self._ranks.begin_attempt()
        self._began_at = self._now()
        if self.times and self.times[-1].has_failed:
            seconds = round(self._began_at - self.times[-1].ended_at, 3)
            self.write("restart", attempt=attempt, seconds=seconds)
        self.write("attempt", attempt=attempt)

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """See ``Reports.end_attempt``."""
        has_failed = error is not None
        self.times.append(self._ranks.time(self._began_at, self._now(), has_failed=has_failed))
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
        self._ranks.add(world, report)
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

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        self._ranks.add_host(world, values)


@contextmanager
def events_to(
    target: str, redact: Redactor, ranks: RankReports, run: str, **started: Any
) -> Iterator[list[Reports]]:
    """Writes events, from the run's start to its end.

    Args:
        target: A path, to whose file the events are added; ``-`` for standard output.
        redact: Takes secrets out of texts.
        ranks: Collects their reports, for what the run cost.
        run: The run's name.
        **started: The fields of the first event.

    Raises:
        LaunchError: The file cannot be written.
    """
    with ExitStack() as stack:
        put: Callable[[str], object] = _print
        if target != STANDARD_OUTPUT:
            try:
                # Without a buffer, since that would be written again when the file is closed.
                file = stack.enter_context(open(target, "ab", buffering=0))
                put = partial(_append, file)
            except OSError as error:
                raise LaunchError(
                    f"RunConfig.events is {target!r}, and no file can be written there "
                    f"({error.strerror}): name one in a folder that exists, or '-'."
                ) from error
        events = Events(put, run, redact, ranks)
        events.write("started", **started)
        began, status = time.monotonic(), "finished"
        try:
            yield [events]
        except BaseException as error:
            is_killed = isinstance(error, KeyboardInterrupt | RunCancelledError)
            status = "killed" if is_killed else "failed"
            raise
        finally:
            seconds = round(time.monotonic() - began, 3)
            events.write("ended", status=status, seconds=seconds, **cost_of(events.times))


def _append(file: FileIO, line: str) -> None:
    data = memoryview(line.encode())
    begun = 0
    try:
        while begun < len(data):
            if not (written := file.write(data[begun:])):
                raise BlockingIOError("its reader takes no more for now")
            begun += written
    except OSError:  # The next run's first line would follow a part of this one.
        if begun and file.seekable() and os.fstat(file.fileno()).st_size == file.tell():
            file.truncate(file.tell() - begun)
        raise


def _print(line: str) -> None:
    print(line, end="", file=for_programs(), flush=True)
