"""See ``python jobs/tune.py --help``."""

from sparkdl_runner.jobs.parsing.command import run_script
from sparkdl_runner.jobs.tune import JOB

if __name__ == "__main__":
    run_script(JOB)
