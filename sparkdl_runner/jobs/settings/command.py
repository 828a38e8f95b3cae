"""A job as a command: its flags are its settings."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.cli.command_line import EXIT_CODES, Parser, guarded
from sparkdl_runner.jobs.settings import Settings, load
from sparkdl_runner.jobs.settings.flags import add_flags, given
from sparkdl_runner.jobs.settings.quiet import quieten_libraries


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: what it may be told, and what it does then."""

    name: str
    summary: str
    """One line of help."""
    example: str
    """What a first call and its YAML look like."""
    settings: type[Settings]
    run: Callable[[Any], None]
    """Is given the settings; raises ConfigError for what shows only when it is begun with."""


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Runs a job and returns its exit code.

    Args:
        job: The job.
        argv: Its arguments; None for the process's own.
    """
    parser = Parser(
        prog=f"{job.name}.py",
        description=job.summary,
        epilog=_epilog(job),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, job.settings)
    return guarded(job.name, lambda: _begin(job, parser.parse_args(argv)))


def add_job(subparsers: Any, job: Job) -> None:
    """Adds a job to a command line that has several."""
    parser = subparsers.add_parser(
        job.name,
        help=job.summary,
        description=job.summary,
        epilog=_epilog(job),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, job.settings)
    parser.set_defaults(run=lambda arguments: _begin(job, arguments))


def _begin(job: Job, arguments: argparse.Namespace) -> None:
    quieten_libraries()
    job.run(load(job.settings, arguments.config, given(arguments, job.settings)))


def _epilog(job: Job) -> str:
    return f"{textwrap.dedent(job.example).strip()}\n{EXIT_CODES}"
