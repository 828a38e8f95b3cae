"""``python -m sparkdl_runner`` is ``sparkdl-runner``."""

from sparkdl_runner.cli import command

if __name__ == "__main__":
    command()
