"""See ``python jobs/convert.py --help``."""

from sparkdl_runner.jobs.convert import JOB
from sparkdl_runner.jobs.parsing.command import run_script

if __name__ == "__main__":
    run_script(JOB)
