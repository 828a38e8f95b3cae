"""See ``python jobs/train.py --help``."""

import sys

from sparkdl_runner.jobs import command, train

if __name__ == "__main__":
    sys.exit(command.main(train.JOB))
