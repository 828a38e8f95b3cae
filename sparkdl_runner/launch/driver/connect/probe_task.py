"""What a task tells of its host. It travels by value: this package may be missing there.

So this file imports the standard library alone, at its top, and the task's own pyspark and pyarrow.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProbeTask:
    """Tells in a line of JSON what the task's host has, and whom it reaches."""

    addresses: Sequence[tuple[str, int]]
    """The addresses and ports to try, at which the client listens."""
    token: bytes
    """What it says there: another process may listen at the same address of another host."""
    modules: Sequence[str]
    """What must be importable."""
    package: str
    """The name of this package; its version is in ``base.version``."""
    try_seconds: float = 1.0
    """How long an address may take to answer."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Spark calls this, in a stage of as many tasks as there are cores."""
        import pyarrow as pa
        import pyspark

        for _ in batches:  # Spark drops a Python process that has not read all of its input.
            pass
        context: Any = pyspark.TaskContext.get()
        told = {
            "host": socket.gethostname(),
            "cpus": context.cpus(),
            "python": platform.python_version(),
            "spark": pyspark.__version__,
            "package": self._version(),
            "missing": [one for one in self.modules if not self._is_there(one)],
            "reached": [list(one) for one in self.addresses if self._reaches(*one)],
        }
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(told)])], ["told"])

    def _is_there(self, module: str) -> bool:
        # To look for "torch.distributed" would import torch.
        return importlib.util.find_spec(module.partition(".")[0]) is not None

    def _version(self) -> str | None:
        if importlib.util.find_spec(self.package) is None:
            return None
        return str(importlib.import_module(f"{self.package}.base.version").__version__)

    def _reaches(self, host: str, port: int) -> bool:
        try:
            with socket.create_connection((host, port), self.try_seconds) as connection:
                return connection.recv(len(self.token), socket.MSG_WAITALL) == self.token
        except OSError:
            return False
