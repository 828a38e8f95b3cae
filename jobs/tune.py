"""See ``python jobs/tune.py --help``."""

import sys

from sparkdl_runner.jobs import command, tune

if __name__ == "__main__":
    sys.exit(command.main(tune.JOB))
