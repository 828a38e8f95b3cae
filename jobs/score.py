"""See ``python jobs/score.py --help``."""

import sys

from sparkdl_runner.jobs import command, score

if __name__ == "__main__":
    sys.exit(command.main(score.JOB))
