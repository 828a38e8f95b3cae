"""How fast each framework trains in a script of this package, beside its own launcher.

One script, two ranks on this host, in turns: by ``run_script``, and by ``torchrun``. The rate is
that of rank 0 after the first steps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, in_turns, positive, ratio

HELP = "frameworks beside their own launchers"
RANKS = 2
LEAST = 0.98
SCRIPT = Path(__file__).with_name("framework_scripts.py")
FRAMEWORKS = ("lightning", "accelerate", "transformers", "keras")
# Also of Accelerate, whose launch starts several processes on CPUs only by MPI.
_TORCHRUN = ("torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(FRAMEWORKS))
    parser.add_argument("--steps", type=positive, default=400, help="of each training")
    parser.add_argument("--pairs", type=positive, default=5, help="trainings of each launcher")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures samples/s of each framework, under both launchers in turns."""
    rates = {}
    for name in arguments.frameworks or FRAMEWORKS:
        print(f"{name}:", flush=True)
        launchers = {
            "here": partial(_rate, _here, name, arguments.steps),
            "own launcher": partial(_rate, _there, name, arguments.steps),
        }
        rates[name] = in_turns(launchers, arguments.pairs, warm_up=False)
    return {"ranks": RANKS, "rates": rates}


def _rate(launch: Any, name: str, steps: int) -> float:
    with tempfile.TemporaryDirectory(prefix="framework-benchmark-") as folder:
        file = Path(folder, "rate")
        launch([name, str(steps), str(file)])
        return float(file.read_text())


def _here(arguments: list[str]) -> None:
    from sparkdl_runner import DistributedRunner, RunConfig

    config = RunConfig(tracking=False, driver_log_verbosity="log_callback_only")
    DistributedRunner(num_proc=-RANKS, config=config).run_script(SCRIPT, arguments)


def _there(arguments: list[str]) -> None:
    command = [sys.executable, "-m", *_TORCHRUN, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def median_ratio(rates: Mapping[str, Any]) -> float | None:
    """The median over pairs of our rate by that of the other launcher; None without figures."""
    ours, theirs = rates["here"], rates["own launcher"]
    return None if isinstance(ours, str) or isinstance(theirs, str) else ratio(ours, theirs)


def table(report: Mapping[str, Any]) -> str:
    """The medians of each framework."""
    rows = [["samples/s of a rank", "here", "own launcher", "ratio"]]
    for name, rates in report["rates"].items():
        found = median_ratio(rates)
        if found is None:
            rows.append([name, next(one for one in rates.values() if isinstance(one, str))])
        else:
            medians = [f"{statistics.median(one):,.0f}" for one in rates.values()]
            rows.append([name, *medians, f"{found:.3f}"])
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether each framework is as fast here."""
    return all((median_ratio(rates) or 0) >= LEAST for rates in report["rates"].values())
