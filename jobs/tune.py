"""See ``python jobs/tune.py --help``."""

import sys

from sparkdl_runner.jobs import tune
from sparkdl_runner.jobs.settings import command

# Some notebooks take even an exit with 0 for a failure.
if __name__ == "__main__" and (code := command.main(tune.JOB)):
    sys.exit(code)
