"""One job as a process: its flags, its exit code, and a clean end when it is asked to stop."""

from __future__ import annotations

import argparse
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.jobs.errors import ConfigError
from sparkdl_runner.jobs.flags import Parser, add_flags, given
from sparkdl_runner.jobs.settings import Settings, load

DONE = 0
FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

_EXIT_CODES = """
exit codes:
  0    done
  1    it was begun and failed
  2    the configuration cannot work; nothing was begun
  130  interrupted (SIGINT)
  143  asked to end (SIGTERM); nothing is left running
"""


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


class Terminated(KeyboardInterrupt):
    """SIGTERM: to all that holds something, the same as Ctrl-C."""


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
    return guarded(job.name, lambda: job.run(_settings(job, parser.parse_args(argv))))


def add_job(subparsers: Any, job: Job, **alike: Any) -> None:
    """Adds a job to a command line that has several."""
    parser = subparsers.add_parser(
        job.name,
        help=job.summary,
        description=job.summary,
        epilog=_epilog(job),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, job.settings)
    parser.set_defaults(run=lambda arguments: job.run(_settings(job, arguments)))


def guarded(name: str, action: Callable[[], int | None]) -> int:
    """Does something as a process would, and returns its exit code.

    What a person can mend is one sentence on the standard error stream; what is a defect, of this
    package or of another, keeps its traceback.
    """
    try:
        with _terminable():
            return action() or DONE
    except ConfigError as error:
        return _say(name, error, BAD_CONFIG)
    except LaunchError as error:
        # Nothing was started: too few slots, a server that does not answer, a missing backend.
        return _say(name, error, BAD_CONFIG)
    except RunnerError as error:
        return _say(name, error, FAILED)
    except Terminated:
        return _say(name, "asked to end by SIGTERM; all ranks are gone.", TERMINATED)
    except KeyboardInterrupt:
        return _say(name, "interrupted; all ranks are gone.", INTERRUPTED)


def _settings(job: Job, arguments: argparse.Namespace) -> Settings:
    return load(job.settings, arguments.config, given(arguments, job.settings))


def _say(name: str, what: object, code: int) -> int:
    print(f"{name}: {what}", file=sys.stderr, flush=True)
    return code


def _epilog(job: Job) -> str:
    return f"{textwrap.dedent(job.example).strip()}\n{_EXIT_CODES}"


@contextmanager
def _terminable() -> Iterator[None]:
    """While it lasts, SIGTERM ends what runs as Ctrl-C does; the first one only."""

    def end(signum: int, frame: object) -> NoReturn:
        # A second one must not tear up what cleans up after the first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
