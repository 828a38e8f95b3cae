"""``python -m sparkdl_runner.doctor``: the same as ``sparkdl-runner doctor``."""

from __future__ import annotations

import sys

from sparkdl_runner.cli.command_line import Parser, guarded
from sparkdl_runner.doctor.command import add_arguments


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(prog="python -m sparkdl_runner.doctor")
    add_arguments(parser)

    def run() -> int:
        arguments = parser.parse_args()
        return int(arguments.run(arguments))

    return guarded("sparkdl-runner doctor", run)


if __name__ == "__main__":
    sys.exit(main())
