"""See ``python jobs/train.py --help``."""

from sparkdl_runner.jobs.parsing.command import run_script
from sparkdl_runner.jobs.train import JOB

if __name__ == "__main__":
    run_script(JOB)
