"""A script as two ranks of this host: by this package's command, and by what libraries bring."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.ranks.processes import JOBS, last_line
from sparkdl_runner.base.cores import usable_cores

RANKS = 2
THREADS = max(1, usable_cores() // RANKS)
"""Of each rank, the same under all launchers: as this package sets it, unless a person has."""
HERE = "sparkdl-runner run"
PEERS = {"torch": "torchrun", "horovod": "horovodrun", "tensorflow": "torchrun"}
"""The launcher beside which a library's ranks are measured."""
_COMMANDS = {
    "torchrun": ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"],
    "horovodrun": ["horovod.runner.launch", "--gloo", "-np", str(RANKS), sys.executable],
}


def run_script(launcher: str, library: str, name: str, options: list[str]) -> tuple[float, float]:
    """Runs a script of ``benchmarks.ranks`` whose ranks join by a library.

    Returns:
        When the command was started, and how many seconds it took.
    """
    script = str(JOBS / "benchmarks" / "ranks" / name)
    ours = ["sparkdl_runner", "run", "--np", str(-RANKS), "--backend", library, script, "--"]
    command = ours if launcher == HERE else [*_COMMANDS[launcher], script]
    started = time.time()
    with subprocess.Popen(
        [sys.executable, "-m", *command, *options],
        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output = process.communicate()[0]
        finally:
            process.terminate()  # Where this is interrupted; it ends its ranks.
    seconds = time.time() - started
    if process.returncode:
        print(output, file=sys.stderr)  # A rank's own words are far above its launcher's.
        raise RuntimeError(f"exit code {process.returncode}: {last_line(output)}")
    return started, seconds
