"""See ``python jobs/convert.py --help``."""

import sys

from sparkdl_runner.jobs import convert
from sparkdl_runner.jobs.settings import command

# Some notebooks take even an exit with 0 for a failure.
if __name__ == "__main__" and (code := command.main(convert.JOB)):
    sys.exit(code)
