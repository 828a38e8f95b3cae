"""How fast each framework trains in a script of this package, beside its own launcher.

One script, two ranks on this host, in turns: by ``run_script``, and by ``torchrun``. TensorFlow has
no launcher: there two processes get their ``TF_CONFIG`` by hand, and it is measured where it is
installed, by ``.venv-tensorflow/bin/python``. The rate is that of rank 0 after the first steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
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
SCRIPT = Path(__file__).parents[1] / "ranks" / "framework_scripts.py"
FRAMEWORKS = ("lightning", "fabric", "accelerate", "transformers", "keras", "tensorflow")
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
    for name in arguments.frameworks or [one for one in FRAMEWORKS if _is_here(one)]:
        print(f"{name}:", flush=True)
        launchers = {
            "here": partial(_rates, _here, name, arguments.steps),
            "own launcher": partial(
                _rates, _by_hand if name == "tensorflow" else _by_torchrun, name, arguments.steps
            ),
        }
        rates[name] = in_turns(launchers, arguments.pairs, warm_up=False)
    return {"ranks": RANKS, "rates": rates}


def _is_here(name: str) -> bool:
    return name != "tensorflow" or importlib.util.find_spec(name) is not None


def _rates(launch: Any, name: str, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="framework-benchmark-") as folder:
        file = Path(folder, "rates")
        launch([name, str(steps), str(file)])
        rates: dict[str, float] = json.loads(file.read_text())
        return rates


def _here(arguments: list[str]) -> None:
    from sparkdl_runner import DistributedRunner, RunConfig

    config = RunConfig(tracking=False, driver_log_verbosity="log_callback_only")
    backend = "tensorflow" if arguments[0] == "tensorflow" else "torch"
    runner = DistributedRunner(num_proc=-RANKS, backend=backend, run_config=config)
    runner.run_script(SCRIPT, arguments)


def _by_torchrun(arguments: list[str]) -> None:
    _wait([_start([sys.executable, "-m", *_TORCHRUN, str(SCRIPT), *arguments])])


def _by_hand(arguments: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        workers = [f"127.0.0.1:{held.getsockname()[1]}" for held in (one, two)]
    _wait(
        [
            _start(
                [sys.executable, str(SCRIPT), *arguments],
                RANK=str(rank),
                TF_CONFIG=json.dumps(
                    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                ),
            )
            for rank in range(RANKS)
        ]
    )


def _start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _wait(processes: list[subprocess.Popen[str]]) -> None:
    said = [process.communicate()[0] for process in processes]
    for process, text in zip(processes, said, strict=True):
        if process.returncode:
            print(text, file=sys.stderr)  # A rank's own words are far above its launcher's.
            raise RuntimeError(f"ended with exit code {process.returncode}; its output is above")


def median_ratio(rates: Mapping[str, Any], by: str = "clock") -> float | None:
    """The median over pairs of our rate by that of the other launcher; None without figures."""
    ours, theirs = rates["here"], rates["own launcher"]
    if isinstance(ours, str) or isinstance(theirs, str):
        return None
    return ratio([one[by] for one in ours], [one[by] for one in theirs])


def table(report: Mapping[str, Any]) -> str:
    """The medians of each framework."""
    rows = [["samples/s of a rank", "here", "own launcher", "ratio", "by processor time"]]
    for name, rates in report["rates"].items():
        found = median_ratio(rates)
        if found is None:
            rows.append([name, next(one for one in rates.values() if isinstance(one, str))])
        else:
            medians = [
                f"{statistics.median(one['clock'] for one in turns):,.0f}"
                for turns in rates.values()
            ]
            rows.append([name, *medians, f"{found:.3f}", f"{median_ratio(rates, 'processor'):.3f}"])
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether each framework is as fast here."""
    return all((median_ratio(rates) or 0) >= LEAST for rates in report["rates"].values())
