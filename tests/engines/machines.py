"""Machines out of one: processes with a network, a process table and mounts of their own.

Linux ends all processes of such a machine with its first one, which ends with whoever started it:
nothing is left after ctrl-C, or if the tests are killed. Networks have no name outside, so that
two runs have the same addresses.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil

BEGIN_SECONDS = 120.0


class Machine:
    """Begins without an interface but the loopback.

    Args:
        logs: The folder for the output of its programs.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._first = subprocess.Popen(
            # The first process reaps orphans by ignoring the signal of their end.
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "env", "--ignore-signal=CHLD", "sleep", "infinity"),
            ],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + BEGIN_SECONDS
        while not (found := self._found()):
            if self._first.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("unshare could make no namespaces")
            time.sleep(0.01)
        self.pid = found[0]
        """Its first process, as the whole machine knows it."""
        self.run("ip", "link", "set", "lo", "up")

    def _found(self) -> list[int]:
        children = psutil.Process(self._first.pid).children()
        return [one.pid for one in children if one.name() == "sleep"]

    def inside(self, *command: object) -> list[str]:
        """The command that runs a command there."""
        names = ("--net", "--mount", "--pid")
        return ["nsenter", f"--target={self.pid}", *names, "--", *map(str, command)]

    def run(self, *command: object) -> str:
        """Runs a program there, to its end. Returns its output."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
        return done.stdout

    def start(
        self, name: str, *command: object, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program there, with its output in ``NAME.log``."""
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self.inside(*command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """Ends all its processes at once, as if its power were cut."""
        self._first.kill()
        self._first.wait()
        # The kernel has ended them all once the first one is gone.
        while psutil.pid_exists(self.pid):
            time.sleep(0.01)
