"""The two ways in which a suite is started: as ranks of this package, and by a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from foreign import results
from sparkdl_runner import DistributedRunner, RunConfig, RunnerError

SECONDS = 900

Launch = Callable[[Path, int, tuple[str, ...]], None]
"""Starts ``foreign.ranks`` with a folder in so many processes, with these further arguments."""


def as_ranks(backend: str) -> Launch:
    """As a script of this package, by its local launcher, started once."""

    def launch(folder: Path, num_proc: int, arguments: tuple[str, ...]) -> None:
        elastic_state = folder / "elastic-state" / Path(arguments[1]).stem
        config = RunConfig(
            tracking=False, hang_timeout_seconds=180, elastic_state_url=str(elastic_state)
        )
        runner = DistributedRunner(num_proc=-num_proc, backend=backend, run_config=config)
        try:
            runner.run_script("foreign.ranks", [str(folder), *arguments], module=True)
        except RunnerError as error:
            print(f"{' '.join(arguments)}: {error}", file=sys.stderr)

    return launch


def by_command(*command: str, **environment: str) -> Launch:
    """By a command that takes Python's arguments.

    Where it ends amid the tests, as horovodrun does, it is started again for those that are left.
    """

    def launch(folder: Path, num_proc: int, arguments: tuple[str, ...]) -> None:
        line = [*command, "-m", "foreign.ranks", str(folder), *arguments]
        until = time.monotonic() + SECONDS
        num_begun = 0
        while not _ends_well(line, environment, until) and arguments[0] == "tests":
            before, num_begun = num_begun, results.leave_out(folder, num_proc)
            if num_begun == before or time.monotonic() > until:
                break
            print(f"{command[-1]} ended amid the tests: started again for the rest", flush=True)

    return launch


def _ends_well(line: list[str], environment: Mapping[str, str], until: float) -> bool:
    with subprocess.Popen(
        line, start_new_session=True, env={**os.environ, **environment}
    ) as process:
        try:
            return process.wait(until - time.monotonic()) == 0
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"ended after {SECONDS} s: {' '.join(line)}", file=sys.stderr)
            return False
