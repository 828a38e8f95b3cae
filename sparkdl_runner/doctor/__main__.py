"""``python -m sparkdl_runner.doctor``: the same as ``sparkdl-runner doctor``."""

from __future__ import annotations

import sys

from sparkdl_runner.cli import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
