"""A worker's ends of what connects it with its agent, and the command that names them."""

from __future__ import annotations

import sys
from typing import NamedTuple

MOST_SAID = 1 << 14
"""Bytes of what a template has printed that a worker prints too; less than a pipe holds."""


class WorkerEnds(NamedTuple):
    """Descriptors that a worker begins with, beside its output."""

    control: int
    """The private line: see ``wire.control``."""
    lifeline: int
    """See ``lifeline``."""
    stacks: int
    """What it writes its stacks to."""
    requests: int
    """What it reads requests to stop from."""


def command(backend: str, parent_pid: int, **ends: int) -> list[str]:
    """The command line of a worker, by its ends, or of a template, by ``template``."""
    words = [sys.executable, "-P", "-m", "sparkdl_runner.launch.worker", "--backend", backend]
    words += ["--parent-pid", str(parent_pid)]
    return words + [word for name, end in ends.items() for word in (f"--{name}-fd", str(end))]
