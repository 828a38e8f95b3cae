#!/usr/bin/env python3
"""Does what the README says first, in an environment of its own: ``make first-example``.

Runs the README's first installation, then its first example, with nothing that this project pins.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def first_block(kind: str) -> str:
    """The README's first block of a kind."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)[0]


def main() -> None:
    """Installs and runs, and says how long each took."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-first-") as name:
        folder = Path(name)
        venv.create(folder / "environment", with_pip=True)
        programs = folder / "environment" / "bin"
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        script = folder / "example.py"
        script.write_text(first_block("python"))
        for command, where in (
            (["/bin/sh", "-ec", first_block("bash install")], ROOT),
            ([str(programs / "python"), str(script)], folder),
        ):
            start = time.monotonic()
            subprocess.run(command, cwd=where, env=environment, check=True)
            print(f"{time.monotonic() - start:.1f} s: {Path(command[0]).name}", file=sys.stderr)


if __name__ == "__main__":
    main()
