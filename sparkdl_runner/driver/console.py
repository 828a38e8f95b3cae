"""What a person sees on the driver while ranks run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TextIO

from sparkdl_runner.driver.gang import Gang
from sparkdl_runner.driver.watch import Watch
from sparkdl_runner.hooks.loader_plans import LoaderPlans
from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.wire.outcome import DIFFERS, RETURNED, Outcome
from sparkdl_runner.wire.sink import Sink, write_lines
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import World


class Console(Sink):
    """Prints on the driver what ranks say, and tells the gang of failures.

    Args:
        show_output: Whether printed lines are shown, or only ``log_to_driver`` messages.
        reports: Who takes what ranks tell of their training.
    """

    gang: Gang
    watch: Watch

    def __init__(self, *, show_output: bool, reports: Sequence[Reports] = ()) -> None:
        self._show_output = show_output
        self._reports = reports
        self._has_complained = False
        self._plans = LoaderPlans()
        self.failures: list[Outcome] = []

    def output(self, world: World, lines: list[str]) -> None:
        """Shows lines, each with its rank."""
        if self._show_output:
            _write(sys.stdout, world, lines)

    def message(self, world: World, text: str) -> None:
        """Shows a ``log_to_driver`` message."""
        _write(sys.stdout, world, [text])

    def failed(self, outcome: Outcome) -> None:
        """Remembers a failure and lets the gang act on it."""
        self.failures.append(outcome)
        self.watch.ended(outcome.world)
        self.gang.rank_failed(is_communication_error=outcome.is_communication_error)

    def vital_signs(self, world: World, signs: VitalSigns) -> None:
        """Lets the watch judge."""
        self.watch.vital_signs(world, signs)

    def loader_plan(self, world: World, plan: dict[str, Any]) -> None:
        """Compares it with those of other ranks; a difference ends them all."""
        difference = self._plans.compare(world, plan)
        if difference is not None:
            self.failed(_differs(world, difference))

    def all_ended(self, outcomes: Sequence[Outcome]) -> None:
        """Compares what only now has no counterpart any more."""
        if all(outcome.status == RETURNED for outcome in outcomes):
            found = self._plans.compare_left_over()
            if found is not None:
                self.failures.append(_differs(*found))

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """Shows what is wrong, and passes the report on."""
        for problem in report["problems"]:
            _write(sys.stderr, world, [problem])
        self._pass_on(lambda one: one.progress(world, report))

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """Passes them on."""
        self._pass_on(lambda one: one.host_metrics(world, values))

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Passes it on."""
        self._pass_on(lambda one: one.file_part(world, name, data, is_first=is_first))

    def _pass_on(self, give: Callable[[Reports], None]) -> None:
        """Gives a report to all who take it. What goes wrong there must not end a training."""
        for one in self._reports:
            try:
                give(one)
            except Exception as error:
                if not self._has_complained:
                    self._has_complained = True
                    told = f"a report of the ranks was not understood: {error!r:.300}"
                    print(f"sparkdl_runner: {told}", file=sys.stderr)


def _differs(world: World, difference: str) -> Outcome:
    return Outcome(world=world, status=DIFFERS, ended_at=time.time(), message=difference)


def _write(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines above a progress bar, if one is shown."""
    tqdm = sys.modules.get("tqdm")
    with nullcontext() if tqdm is None else tqdm.tqdm.external_write_mode(file=stream):
        write_lines(stream, world, lines)


def show_notes(outcomes: Sequence[Outcome]) -> None:
    """Says on stderr what went less than well in a run that succeeded."""
    for outcome in outcomes:
        for note in outcome.notes:
            print(f"sparkdl_runner: {note.rstrip('.')}.", file=sys.stderr)
