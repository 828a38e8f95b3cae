"""The driver with thousands of simulated ranks, eight on each host.

The driver's classes and the messages are the real ones; the agents are simulated, many in a
process, and start no workers. Each number of ranks has a driver process of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from benchmarks.ranks.processes import answer_of
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

HELP = "the driver with thousands of simulated ranks"
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
"""Of the figures that a driver process tells."""

OPTIONS = (
    Option(
        "ranks", [64, 128, 256, 512, 1024, 2048, 4096], quick=[256, 1024], help="how many ranks"
    ),
    Option("processes", 4, help="of simulated agents"),
    Option("seconds", 5.0, quick=1, help="of watching"),
    Option("repeat", 3, quick=1, help="attempts, of which the median"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each number of ranks."""
    figures = {name: Figure(unit=unit, better="less") for name, unit in UNITS.items()}
    for ranks in arguments.ranks:
        request = {
            "num_proc": ranks,
            "processes": arguments.processes,
            "seconds": arguments.seconds,
        }
        yield Case(
            name=f"{ranks:,} ranks",
            figures={**figures, "cause named": Figure(unit="", better="more", bound=1)},
            ours={"ours": partial(answer_of, "ranks.scale_driver", request)},
            turns=arguments.repeat,
            facts={"simulated ranks": ranks, "processes of simulated agents": arguments.processes},
        )
