"""The driver with thousands of simulated ranks, eight on each host.

The driver's classes and the messages are the real ones; the agents are simulated, many in a
process, and start no workers. Each number of ranks has a driver process of its own. Told are the
seconds (by the clock, and of the driver's processor) until all ranks have joined and from a rank's
death to the error that names it, the share of a core that watching takes, the driver's memory, and
the size of the error. ``exponent`` is the slope of each figure over the number of ranks, both as
logarithms, where there are enough ranks for the figure to be more than its floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, positive
from benchmarks.ranks.processes import module_command, module_environment

HELP = "the driver with thousands of simulated ranks"
FROM_RANKS = 256
FIGURES = {
    "assignment_cpu_s": "ranks assigned, driver's CPU s",
    "joined_s": "all joined, s",
    "joined_cpu_s": "all joined, driver's CPU s",
    "watching_cores": "watching, cores",
    "failure_s": "failure told, s",
    "failure_cpu_s": "failure told, driver's CPU s",
    "memory_mb": "driver's memory, MB",
    "error_characters": "error, characters",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    ranks = [64, 128, 256, 512, 1024, 2048, 4096]
    parser.add_argument("--ranks", type=positive, nargs="+", default=ranks, help="how many ranks")
    parser.add_argument("--processes", type=positive, default=4, help="of simulated agents")
    parser.add_argument("--seconds", type=float, default=5.0, help="of watching")
    parser.add_argument("--repeat", type=positive, default=3, help="attempts, of which the median")
    parser.add_argument("--plot", type=Path, default=Path("benchmark-scale.png"))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs each number of ranks, and draws the figures."""
    attempts: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in arguments.ranks}
    for turn in range(arguments.repeat):
        for ranks, found in attempts.items():
            print(f"  turn {turn + 1} of {arguments.repeat}: {ranks} ranks", flush=True)
            command = map(str, (ranks, arguments.processes, arguments.seconds))
            done = subprocess.run(
                module_command("ranks.scale_driver", *command),
                env=module_environment(),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found.append(json.loads(done.stdout))
    results = {
        ranks: {name: statistics.median(one[name] for one in found) for name in FIGURES}
        for ranks, found in attempts.items()
    }
    is_right = all(one["names_the_cause"] for found in attempts.values() for one in found)
    exponents = {name: exponent(results, name) for name in FIGURES}
    _draw(results, exponents, arguments.plot)
    return {
        "results": results,
        "attempts": attempts,
        "exponents": exponents,
        "names_the_cause": is_right,
        "plot": str(arguments.plot),
    }


def exponent(results: Mapping[int, Mapping[str, float]], name: str) -> float | None:
    """The slope of a figure over the number of ranks; None for too few numbers of ranks."""
    points = [(log(ranks), log(one[name])) for ranks, one in results.items() if ranks >= FROM_RANKS]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def table(report: Mapping[str, Any]) -> str:
    """Each figure by the number of ranks."""
    results = report["results"]
    rows = [("ranks", *(f"{ranks:,}" for ranks in results), "exponent")]
    for name, label in FIGURES.items():
        slope = report["exponents"][name]
        values = [f"{one[name]:.3g}" for one in results.values()]
        rows.append((label, *values, "" if slope is None else f"{slope:.2f}"))
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether each error named the rank that had died."""
    return bool(report["names_the_cause"])


def _draw(
    results: Mapping[int, Mapping[str, float]], exponents: Mapping[str, float | None], path: Path
) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, label in FIGURES.items():
        slope = exponents[name]
        told = label if slope is None else f"{label} (exponent {slope:.2f})"
        axes.loglog(list(results), [one[name] for one in results.values()], "o-", label=told)
    axes.set_xlabel("ranks")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
