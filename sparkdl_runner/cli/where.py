"""``where``: the path of a job's file, for ``spark-submit`` and other programs that run files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError

ENTRY = Path(__file__).parents[1] / "jobs" / "entry"


def add_parser(subparsers: Any) -> None:
    """Adds ``where``."""
    summary = "Print where a job's file is installed, for spark-submit."
    parser = subparsers.add_parser(
        "where",
        help=summary,
        description=summary,
        epilog="for example:\n  sparkdl-runner where jobs/train.py\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help=f"one of {', '.join(_files())}")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    files = _files()
    if arguments.file not in files:
        raise ConfigError(f"there is no file {arguments.file}{did_you_mean(arguments.file, files)}")
    print(files[arguments.file])
    return {"file": str(files[arguments.file])}


def _files() -> dict[str, Path]:
    return {f"jobs/{path.name}": path for path in sorted(ENTRY.glob("*.py"))}
