"""A job as a command: its flags are its settings."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.base.standard_output import kept_for_programs
from sparkdl_runner.cli import json_document
from sparkdl_runner.cli.command_line import EXIT_CODES, Parser, guarded
from sparkdl_runner.jobs.parsing import Settings, load
from sparkdl_runner.jobs.parsing.flags import add_flags, given
from sparkdl_runner.tracking.report.events import STANDARD_OUTPUT


@dataclass(frozen=True, kw_only=True)
class Command:
    """A job: its settings, and what it does with them."""

    name: str
    summary: str
    """One line of help."""
    example: str
    """An example of a call and its YAML."""
    settings: type[Settings]
    run: Callable[[Any], Mapping[str, Any]]
    """Takes the settings, and returns what ``--json`` prints. Raises ConfigError for what only
    shows once it has begun."""

    def add_parser(self, subparsers: Any) -> None:
        """Adds the job to a command line that has several commands."""
        parser = subparsers.add_parser(self.name, help=self.summary, **self._help())
        add_flags(parser, self.settings)
        parser.set_defaults(run=self._begin)

    def _help(self) -> dict[str, Any]:
        return {
            "usage": "%(prog)s [-h] [--config FILE] [FLAGS]",
            "description": self.summary,
            "epilog": f"{textwrap.dedent(self.example).strip()}\n{EXIT_CODES}",
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }

    def _begin(self, arguments: argparse.Namespace) -> Mapping[str, Any]:
        _quieten_libraries()
        settings = load(self.settings, arguments.config, given(arguments, self.settings))
        with printing_beside(getattr(settings, "events", None)):
            return self.run(settings)


def printing_beside(events: str | None) -> AbstractContextManager[None]:
    """Keeps standard output for a job's events, if that is where they go."""
    return kept_for_programs() if events == STANDARD_OUTPUT else nullcontext()


def main(job: Command, argv: Sequence[str] | None = None) -> int:
    """Runs a job and returns its exit code.

    Args:
        job: The job.
        argv: Its arguments; None for the process's own.
    """
    words = job._help()
    words["epilog"] = words["epilog"].replace(f"  sparkdl-runner {job.name} ", f"  {job.name}.py ")
    parser = Parser(prog=f"{job.name}.py", **words)
    add_flags(parser, job.settings)
    json_document.add_flag(parser)
    argv = sys.argv[1:] if argv is None else argv
    return guarded(job.name, lambda: job._begin(parser.parse_args(argv)), argv)


def run_script(job: Command) -> None:
    """Runs a job as a process of its own, and ends the process with its exit code."""
    # Some notebooks take even an exit with 0 for a failure.
    if code := main(job):
        sys.exit(code)


def _quieten_libraries() -> None:
    """Silences what libraries tell of themselves, here and in the processes that this one starts.

    It would hide what the job says, and MLflow sends it over the network. Variables that are set
    already stay.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="petastorm")
    logging.getLogger("petastorm").setLevel(logging.ERROR)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
