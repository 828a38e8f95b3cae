"""``python -m sparkdl_runner`` is ``sparkdl-runner``."""

import sys

from sparkdl_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
