"""See ``python jobs/score.py --help``."""

from sparkdl_runner.jobs.score import JOB
from sparkdl_runner.jobs.settings.command import run_script

if __name__ == "__main__":
    run_script(JOB)
