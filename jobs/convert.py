"""See ``python jobs/convert.py --help``."""

import sys

from sparkdl_runner.jobs import command, convert

if __name__ == "__main__":
    sys.exit(command.main(convert.JOB))
