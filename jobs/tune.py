"""See ``python jobs/tune.py --help``."""

import sys

from sparkdl_runner.jobs import command, tune

# Some notebooks take even an exit with 0 for a failure.
if __name__ == "__main__" and (code := command.main(tune.JOB)):
    sys.exit(code)
