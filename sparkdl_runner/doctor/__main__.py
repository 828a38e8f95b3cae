"""``python -m sparkdl_runner.doctor``: the same as ``sparkdl-runner doctor``."""

from __future__ import annotations

import argparse
import sys

from sparkdl_runner.doctor.command import add_arguments


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparkdl_runner.doctor")
    add_arguments(parser)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
