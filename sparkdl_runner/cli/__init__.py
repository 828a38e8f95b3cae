"""The ``sparkdl-runner`` command; each of its commands is imported only when it is asked for.

What every command line needs (flags, exit codes, near misses) is here too, for jobs and the doctor.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.base.version import __version__
from sparkdl_runner.cli import json_document
from sparkdl_runner.cli.command_line import Parser, guarded
from sparkdl_runner.errors import ConfigError, LaunchError

# A job imports these at once, and the extra jobs brings them. It checks the others itself.
_JOBS_NEED = {"pydantic", "yaml"}

# By name: the module whose JOB, or else whose add_parser(subparsers), sets it up, and one line of
# help. Only the chosen one is imported: doctor must run where what others need is missing.
_GROUPS = {
    "before anything else": {
        "doctor": ("doctor.command", "say what would keep a run from working here, and what to do"),
        "preflight": ("jobs.preflight", "measure the hosts of ranks, and name the slow ones"),
        "build-horovod": ("cli.build_horovod", "build Horovod for the torch that is installed"),
    },
    "train": {
        "run": ("jobs.run_function", "run a script or a function as ranks"),
        "train": ("jobs.train", "run a training that a configuration describes, with MLflow"),
        "tune": ("jobs.tune", "search for good hyperparameters, each trial a training"),
    },
    "tables": {
        "convert": ("jobs.convert", "convert a table or files, for every rank to read its shard"),
        "score": ("jobs.score", "apply a model of MLflow's to a table"),
    },
    "afterwards": {
        "checkpoints": ("checkpoint.command", "list or verify checkpoints"),
        "deliver": ("tracking.command", "bring to MLflow what trainings could not"),
    },
    "for spark-submit": {
        "where": ("cli.where", "print the path of a job's file: where jobs/train.py"),
    },
}
_COMMANDS = {name: entry for group in _GROUPS.values() for name, entry in group.items()}
_EXAMPLES = """\
for example:
  sparkdl-runner doctor --np 2
  sparkdl-runner run train.py --np 2 -- --epochs 3
  sparkdl-runner train --example digits --np -2 --backend torch
  sparkdl-runner train --help
"""


def command(argv: Sequence[str] | None = None) -> None:
    """The entry point of the installed command.

    Databricks calls it for a wheel's task and passes over what it returns, so a failure has to be
    raised.
    """
    if code := main(argv):
        sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in argv if not word.startswith("-")), "")
    return guarded(f"sparkdl-runner {chosen}".strip(), lambda: _run(argv, chosen), argv)


def _run(argv: Sequence[str], chosen: str) -> Mapping[str, Any]:
    if chosen and chosen not in _COMMANDS:
        raise ConfigError(f"there is no command {chosen!r}{did_you_mean(chosen, _COMMANDS)}")
    parser = Parser(
        prog="sparkdl-runner",
        description="Distributed training on Spark, from the command line.",
        epilog=f"{_listed()}\n\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help="one of these:")
    if chosen:
        module = _import(chosen, _COMMANDS[chosen][0])
        getattr(module, "JOB", module).add_parser(commands)
        json_document.add_flag(parser)
    # argparse takes what follows -- for its own, in ways that differ between its versions.
    own = list(argv[: argv.index("--")] if "--" in argv else argv)
    # It may stand before the command, and is known by now.
    arguments = parser.parse_args([word for word in own if word != "--json"])
    arguments.more = list(argv[len(own) + 1 :])
    if arguments.more and not getattr(arguments, "takes_more", False):
        raise ConfigError(f"{chosen} takes nothing after --; only run does, for a script.")
    return arguments.run(arguments)  # type: ignore[no-any-return]


def _listed() -> str:
    """The commands, by groups, which argparse has for flags alone."""
    return "\n\n".join(
        "\n".join(
            [f"{title}:", *(f"  {name:<15}{meaning}" for name, (_, meaning) in group.items())]
        )
        for title, group in _GROUPS.items()
    )


def _import(command: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(f"sparkdl_runner.{module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _JOBS_NEED:
            raise
        raise LaunchError(
            f"{command} needs {missing}, which is not installed here: run pip install "
            "'sparkdl-runner[jobs]'."
        ) from None
