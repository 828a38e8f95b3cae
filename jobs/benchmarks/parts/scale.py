"""The driver with thousands of simulated ranks, eight on each host.

The driver's classes and the messages are the real ones; the agents are simulated, many in a
process, and start no workers. Each number of ranks has a driver process of its own. ``exponent`` is
the slope of each figure over the number of ranks, both as logarithms, where there are enough ranks
for the figure to be more than its floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import log

from benchmarks.ranks.processes import module_command, module_environment
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive

HELP = "the driver with thousands of simulated ranks"
FROM_RANKS = 256
UNITS = {
    "ranks assigned": "CPU s",
    "all joined": "s",
    "joining": "CPU s",
    "watching": "cores",
    "failure told": "s",
    "telling": "CPU s",
    "memory": "MB",
    "error": "characters",
}
"""What a driver process tells."""

QUICK = ["--ranks", "256", "1024", "--seconds", "1", "--repeat", "1"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    ranks = [64, 128, 256, 512, 1024, 2048, 4096]
    parser.add_argument("--ranks", type=positive, nargs="+", default=ranks, help="how many ranks")
    parser.add_argument("--processes", type=positive, default=4, help="of simulated agents")
    parser.add_argument("--seconds", type=float, default=5.0, help="of watching")
    parser.add_argument("--repeat", type=positive, default=3, help="attempts, of which the median")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each number of ranks, and then how the figures grow with it."""
    figures = {name: Figure(unit=unit, better="less") for name, unit in UNITS.items()}
    found: dict[int, list[dict[str, float]]] = {ranks: [] for ranks in arguments.ranks}
    for ranks, attempts in found.items():
        given = (ranks, arguments.processes, arguments.seconds)
        yield Case(
            name=f"{ranks:,} ranks",
            figures={**figures, "cause named": Figure(unit="", better="more", bound=1)},
            ours={"ours": partial(_attempt, attempts, tuple(map(str, given)))},
            turns=arguments.repeat,
            facts={"ranks": ranks, "processes of simulated agents": arguments.processes},
        )
    if len([ranks for ranks in found if ranks >= FROM_RANKS]) > 1:
        yield Case(
            name=f"exponent, from {FROM_RANKS} ranks",
            figures={name: Figure(unit="", better="less") for name in UNITS},
            ours={"ours": partial(_exponents, found)},
        )


def _attempt(attempts: list[dict[str, float]], given: Sequence[str]) -> dict[str, float]:
    done = subprocess.run(
        module_command("ranks.scale_driver", *given),
        env=module_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    attempts.append(json.loads(done.stdout))
    return attempts[-1]


def _exponents(found: Mapping[int, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The slope of each figure's median over the number of ranks."""
    many = {ranks: attempts for ranks, attempts in found.items() if ranks >= FROM_RANKS}
    return {
        name: statistics.linear_regression(
            [log(ranks) for ranks in many],
            [log(statistics.median(one[name] for one in attempts)) for attempts in many.values()],
        ).slope
        for name in UNITS
    }
